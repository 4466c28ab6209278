"""OffsetFetch (key 9), versions 1-10. KIP-709 (several groups, from 8), KIP-1071 (topic ids, from 10).

Answers the committed offset of each partition, -1 where there is none; with null topics, all of the group's.
Nothing is transactional, so `require_stable` changes nothing.
"""

from collections.abc import Iterator

from tidegate.server.handler import Answer, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.handlers.addresses import ZERO_ID
from tidegate.storage.storage import Storage
from tidegate.storage.store import CommittedOffset

__all__ = ["OFFSET_FETCH", "offset_fetch_handler"]

OFFSET_FETCH = 9
_SEVERAL_GROUPS_SINCE = 8
_TOPIC_IDS_SINCE = 10
_NO_OFFSET = -1

_Offsets = dict[tuple[str, int], CommittedOffset]


def offset_fetch_handler(storage: Storage) -> Handler:
    """Return the handler that answers the offsets kept in `storage`."""

    def handle(request: Request) -> Answer:
        body = request.body()
        version = request.header.api_version
        if version < _SEVERAL_GROUPS_SINCE:
            topics = _topics(storage, body["group_id"], body["topics"], by_id=False)
            return request.answer({"throttle_time_ms": 0, "topics": topics, "error_code": error_codes.NONE})
        groups = [
            {
                "group_id": group["group_id"],
                "topics": _topics(
                    storage, group["group_id"], group["topics"], by_id=version >= _TOPIC_IDS_SINCE
                ),
                "error_code": error_codes.NONE,
            }
            for group in body["groups"]
        ]
        return request.answer({"throttle_time_ms": 0, "groups": groups})

    return handle


def _topics(storage: Storage, group_id: str, wanted: list[Message] | None, *, by_id: bool) -> list[Message]:
    offsets = storage.store.committed_offsets(group_id)
    if wanted is None:
        wanted = list(_everything(storage, offsets))
    return [_topic(storage, offsets, part, by_id=by_id) for part in wanted]


def _everything(storage: Storage, offsets: _Offsets) -> Iterator[Message]:
    for name in dict.fromkeys(topic for topic, _ in offsets):
        topic = storage.topics.by_name.get(name)
        yield {
            "name": name,
            "topic_id": ZERO_ID if topic is None else topic.topic_id,
            "partition_indexes": [partition for topic_name, partition in offsets if topic_name == name],
        }


def _topic(storage: Storage, offsets: _Offsets, part: Message, *, by_id: bool) -> Message:
    if not by_id:
        name: str = part["name"]
        partitions = [_partition(offsets, name, index) for index in part["partition_indexes"]]
        return {"name": name, "partitions": partitions}
    topic = storage.topics.by_id.get(part["topic_id"])
    if topic is None:
        partitions = [
            _position(index, None, error_code=error_codes.UNKNOWN_TOPIC_ID)
            for index in part["partition_indexes"]
        ]
    else:
        partitions = [_partition(offsets, topic.name, index) for index in part["partition_indexes"]]
    return {"topic_id": part["topic_id"], "partitions": partitions}


def _partition(offsets: _Offsets, name: str, index: int) -> Message:
    return _position(index, offsets.get((name, index)), error_code=error_codes.NONE)


def _position(index: int, committed: CommittedOffset | None, *, error_code: int) -> Message:
    return {
        "partition_index": index,
        "committed_offset": _NO_OFFSET if committed is None else committed.offset,
        "committed_leader_epoch": _NO_OFFSET if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": error_code,
    }
