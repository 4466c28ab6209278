"""Shapes that the answers of many APIs share: partitions by topic, timeouts, and the release of a long answer.

Freeing the memory of a long request and its answer takes time, too, and is done in slices.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from tidegate.in_slices import release, release_messages
from tidegate.server.requests.handler import Answer, Charge, Message, Request
from tidegate.wire import AT_ONCE_BYTES, EncodedElements

__all__ = ["answer_and_release", "answer_partitions", "answers_by_topic", "has_timed_out", "release"]

_ANSWERED_AT_ONCE = 32  # partitions: writing them takes a tenth of a millisecond


def answer_and_release(
    request: Request,
    message: Message,
    *containers: list[Any] | dict[Any, Any],
    charge: Charge = Charge.REQUEST,
) -> Generator[None, None, Answer]:
    """Return the answer that sends `message`, and empty what it was made of."""
    if sum(map(len, containers)) <= _ANSWERED_AT_ONCE and len(request.frame) <= AT_ONCE_BYTES:
        return request.answer(message, charge)
    answer = yield from request.answer_in_slices(message, charge)
    yield from release(*containers)
    return answer


def answer_partitions(
    request: Request, message: Message, topics: list[Message], field: str, charge: Charge
) -> Generator[None, None, Answer]:
    """Return the answer that sends `message`, whose `topics` have partitions in `field`, and empty all of it.

    A few partitions, the usual case, are encoded at once, which is faster. For partitions that are already encoded
    (`EncodedElements`), the number of chunks counts.
    """
    if (
        len(topics) <= _ANSWERED_AT_ONCE
        and len(topics) + sum([_parts(topic[field]) for topic in topics]) <= _ANSWERED_AT_ONCE
    ):
        return request.answer(message, charge)
    answer = yield from request.answer_in_slices(message, charge)
    yield from release_messages(topics)
    return answer


def answers_by_topic(
    topics: Sequence[Message],
    answers_of: Callable[[str], Callable[[Any], Message]],
    *,
    name: str = "name",
    partitions: str = "partitions",
    results: str = "partitions",
) -> Generator[None, None, list[Message]]:
    """Return an answer for each partition of `topics`, by topic, in their order; empty the lists of partitions.

    `answers_of(topic)` returns the function that answers a partition of the topic. name, partitions: the fields of the
    request; results: the field of the answer.
    """
    answers: list[Message] = []
    for part in topics:
        answer = answers_of(part[name])
        made: list[Message] = []
        for partition in part[partitions]:
            made.append(answer(partition))
            yield
        answers.append({name: part[name], results: made})
        yield from release(part[partitions])
        yield
    return answers


def has_timed_out(body: Message) -> bool:
    """Return whether a request to the controller has timed out before it begins: `timeout_ms` is 0 or less.

    Such a request gets error 7 and changes nothing. Kafka's controller handles a request in an event that has the
    request's deadline: a timeout of 0 ms or less is over before the event runs. A longer timeout never ends here,
    because a request is carried out when it is handled. Follows: Kafka `QuorumController`, `ControllerRequestContext`.

    >>> has_timed_out({"timeout_ms": 0}), has_timed_out({"timeout_ms": 1})
    (True, False)
    """
    return bool(body["timeout_ms"] <= 0)


def _parts(partitions: list[Message] | EncodedElements) -> int:
    return len(partitions.chunks if isinstance(partitions, EncodedElements) else partitions)
