"""ListOffsets (key 2), versions 1-11. KIP-79, KIP-734 (-3 from 7), KIP-405 (-4 from 8), KIP-1005 (-5 from 9).
KIP-1023 (-6 from 11).

Times below 0 name places: -1 the end, -2 the start, -3 the record with the largest time, -4 the start of what is kept
locally (all of it), -5 the end of what is kept elsewhere and -6 the start of what will be (nothing: -1). Others are
times: the first record not older.
In a compressed batch the batch's first offset is answered, the records are not opened.
Not implemented: tiered storage, followers.
"""

from tidegate.server.handler import Answer, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.errors import LogDamagedError
from tidegate.storage.log import LEADER_EPOCH, PartitionLog
from tidegate.storage.storage import Storage
from tidegate.storage.time_lookup import TimeAndOffset, offset_by_time, offset_of_latest_time

__all__ = ["LIST_OFFSETS", "list_offsets_handler"]

LIST_OFFSETS = 2
LATEST, EARLIEST, LARGEST_TIME, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    LARGEST_TIME: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_UNKNOWN = -1


def list_offsets_handler(storage: Storage) -> Handler:
    """Return the handler that looks offsets up in the logs of `storage`."""

    def handle(request: Request) -> Answer:
        version = request.header.api_version
        answers = []
        for part in request.body()["topics"]:
            topic = storage.topics.by_name.get(part["name"])
            partitions = []
            for wanted in part["partitions"]:
                log = None if topic is None else topic.log(wanted["partition_index"])
                partitions.append(_list_offset(log, wanted, version))
            answers.append({"name": part["name"], "partitions": partitions})
        return request.answer({"throttle_time_ms": 0, "topics": answers})

    return handle


def _list_offset(log: PartitionLog | None, wanted: Message, version: int) -> Message:
    index, time_ms = wanted["partition_index"], wanted["timestamp"]
    if time_ms < 0 and version < SINCE_VERSION.get(time_ms, version + 1):
        return _answer(index, None, error_codes.UNSUPPORTED_VERSION)
    if log is None:
        return _answer(index, None, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    if wanted.get("current_leader_epoch", _UNKNOWN) > LEADER_EPOCH:
        return _answer(index, None, error_codes.UNKNOWN_LEADER_EPOCH)
    if not log.damaged:
        try:
            return _answer(index, _find(log, time_ms), error_codes.NONE)
        except (LogDamagedError, OSError) as error:
            log.mark_damaged(str(error))
    return _answer(index, None, error_codes.KAFKA_STORAGE_ERROR)


def _find(log: PartitionLog, time_ms: int) -> TimeAndOffset | None:
    if time_ms == LATEST:
        return _UNKNOWN, log.end_offset
    if time_ms in (EARLIEST, EARLIEST_LOCAL):
        return _UNKNOWN, log.start_offset
    if time_ms == LARGEST_TIME:
        return offset_of_latest_time(log)
    return None if time_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD) else offset_by_time(log, time_ms)


def _answer(index: int, found: TimeAndOffset | None, error_code: int) -> Message:
    return {
        "partition_index": index,
        "error_code": error_code,
        "timestamp": _UNKNOWN if found is None else found[0],
        "offset": _UNKNOWN if found is None else found[1],
        "leader_epoch": _UNKNOWN if found is None else LEADER_EPOCH,
    }
