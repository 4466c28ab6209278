"""Release of the data of a long request and its answer, in slices: freeing memory takes time, too."""

from collections.abc import Generator
from typing import Any

from tidegate.in_slices import release, release_messages
from tidegate.server.requests.handler import Answer, Charge, Message, Request
from tidegate.wire import AT_ONCE_BYTES, EncodedElements

__all__ = ["answer_and_release", "answer_partitions", "release"]

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

    A few partitions, which is nearly always, are written at once: that is faster. Of those that are encoded already
    (`EncodedElements`) the chunks count.
    """
    if (
        len(topics) <= _ANSWERED_AT_ONCE
        and len(topics) + sum([_parts(topic[field]) for topic in topics]) <= _ANSWERED_AT_ONCE
    ):
        return request.answer(message, charge)
    answer = yield from request.answer_in_slices(message, charge)
    yield from release_messages(topics)
    return answer


def _parts(partitions: list[Message] | EncodedElements) -> int:
    return len(partitions.chunks if isinstance(partitions, EncodedElements) else partitions)
