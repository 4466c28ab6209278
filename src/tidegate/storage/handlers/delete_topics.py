"""DeleteTopics (key 20), versions 1-6. KIP-4, KIP-516 (by id, from 6), KIP-599 (quota).

Each topic costs as many permits as it has partitions, charged just before it goes (B§5.3); Apache Kafka's order among
the topics of one request is unspecified, here it is the request's. The records are gone for everybody at once; answers
on their way still send them.
"""

from collections import Counter

from tidegate.server.handler import Answer, Charge, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.errors import StorageError
from tidegate.storage.handlers.addresses import ZERO_ID
from tidegate.storage.storage import Storage
from tidegate.storage.topics import Topic

__all__ = ["DELETE_TOPICS", "delete_topics_handler"]

DELETE_TOPICS = 20
_BY_ID_SINCE = 6
_TEXT_OF_UNKNOWN_NAME = "This server does not host this topic-partition."
_TEXT_OF_UNKNOWN_ID = "This server does not host this topic ID."


def delete_topics_handler(storage: Storage) -> Handler:
    """Return the handler that deletes topics of `storage`."""

    def handle(request: Request) -> Answer:
        body = request.body()
        if request.header.api_version < _BY_ID_SINCE:
            wanted = [(name, ZERO_ID) for name in body["topic_names"]]
        else:
            wanted = [(topic["name"], topic["topic_id"]) for topic in body["topics"]]
        times = Counter(wanted)
        answers = [_delete(storage, request, *key, times=count) for key, count in times.items()]
        return request.answer({"throttle_time_ms": 0, "responses": answers}, Charge.MUTATION)

    return handle


def _delete(storage: Storage, request: Request, name: str | None, topic_id: str, *, times: int) -> Message:
    """Find, charge and delete one topic."""
    problem = _naming_problem(name, topic_id, times=times)
    if problem is not None:
        return _result(name, topic_id, error_codes.INVALID_REQUEST, problem)
    topic: Topic | None
    if name is None:
        topic = storage.topics.by_id.get(topic_id)
        if topic is None:
            return _result(None, topic_id, error_codes.UNKNOWN_TOPIC_ID, _TEXT_OF_UNKNOWN_ID)
    else:
        topic = storage.topics.by_name.get(name)
        if topic is None:
            return _result(name, ZERO_ID, error_codes.UNKNOWN_TOPIC_OR_PARTITION, _TEXT_OF_UNKNOWN_NAME)
    if not request.quotas.record_mutations(len(topic.logs)):
        return _result(topic.name, topic.topic_id, error_codes.THROTTLING_QUOTA_EXCEEDED, None)
    try:
        storage.topics.delete(topic)
    except StorageError as error:
        return _result(topic.name, topic.topic_id, error_codes.KAFKA_STORAGE_ERROR, str(error))
    return _result(topic.name, topic.topic_id, error_codes.NONE, None)


def _naming_problem(name: str | None, topic_id: str, *, times: int) -> str | None:
    """Return Kafka's text where a topic is named twice, in two ways or not at all."""
    if name is None and topic_id == ZERO_ID:
        return "Neither topic name nor id were specified."
    if name is not None and topic_id != ZERO_ID:
        return "You may not specify both topic name and topic id."
    if times > 1:
        return "Duplicate topic name." if name is not None else "Duplicate topic id."
    return None


def _result(name: str | None, topic_id: str, error_code: int, text: str | None) -> Message:
    return {"name": name, "topic_id": topic_id, "error_code": error_code, "error_message": text}
