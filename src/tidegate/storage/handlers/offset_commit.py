"""OffsetCommit (key 8), versions 2-10. KIP-98, KIP-1071 (topic ids, from 10).

Keeps the positions of consumers that assign partitions themselves (no member, no generation); they survive `kill -9`.
Not implemented: members of a group (error 25, or 22 for a group that is not known), expiry of offsets.
"""

import logging

from tidegate.server.handler import Answer, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.config import OFFSET_METADATA_MAX_BYTES
from tidegate.storage.errors import StorageError
from tidegate.storage.storage import Storage
from tidegate.storage.store import CommittedOffset
from tidegate.storage.topics import Topic

__all__ = ["OFFSET_COMMIT", "offset_commit_handler"]

OFFSET_COMMIT = 8
NO_GENERATION = -1
_TOPIC_IDS_SINCE = 10
_logger = logging.getLogger(__name__)


def offset_commit_handler(storage: Storage) -> Handler:
    """Return the handler that keeps offsets in `storage`."""

    def handle(request: Request) -> Answer:
        body = request.body()
        group_id = body["group_id"]
        refused = _membership_problem(storage, body)
        accepted: list[CommittedOffset] = []
        answers: list[Message] = []
        for part in body["topics"]:
            if request.header.api_version < _TOPIC_IDS_SINCE:
                key, missing = {"name": part["name"]}, error_codes.UNKNOWN_TOPIC_OR_PARTITION
                topic = storage.topics.by_name.get(part["name"])
            else:
                key, missing = {"topic_id": part["topic_id"]}, error_codes.UNKNOWN_TOPIC_ID
                topic = storage.topics.by_id.get(part["topic_id"])
            partitions = []
            for wanted in part["partitions"]:
                error_code = (missing if topic is None else _problem(topic, wanted)) or refused
                if error_code == error_codes.NONE and topic is not None:
                    accepted.append(_committed(group_id, topic.name, wanted))
                partitions.append({"partition_index": wanted["partition_index"], "error_code": error_code})
            answers.append({**key, "partitions": partitions})
        try:
            storage.store.commit_offsets(accepted)
        except StorageError as error:
            _logger.error(
                "cannot keep offsets of group %r: %s", group_id, error, extra={"repeats": "offset commit"}
            )
            for partition in (partition for answer in answers for partition in answer["partitions"]):
                partition["error_code"] = partition["error_code"] or error_codes.COORDINATOR_NOT_AVAILABLE
        return request.answer({"throttle_time_ms": 0, "topics": answers})

    return handle


def _membership_problem(storage: Storage, body: Message) -> int:
    """Return the error for a commit in the name of a member, of which there is none."""
    if body["generation_id_or_member_epoch"] <= NO_GENERATION and not body["member_id"]:
        return error_codes.NONE
    known = storage.store.committed_offsets(body["group_id"])
    return error_codes.UNKNOWN_MEMBER_ID if known else error_codes.ILLEGAL_GENERATION


def _problem(topic: Topic, wanted: Message) -> int:
    if topic.log(wanted["partition_index"]) is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if len((wanted["committed_metadata"] or "").encode()) > OFFSET_METADATA_MAX_BYTES:
        return error_codes.OFFSET_METADATA_TOO_LARGE
    return error_codes.NONE


def _committed(group_id: str, topic: str, wanted: Message) -> CommittedOffset:
    return CommittedOffset(
        group_id=group_id,
        topic=topic,
        partition=wanted["partition_index"],
        offset=wanted["committed_offset"],
        leader_epoch=wanted.get("committed_leader_epoch", -1),
        metadata=wanted["committed_metadata"] or "",
    )
