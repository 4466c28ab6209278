"""Answers of a custom quota callback, from `tags` rows: the tags that count each client, and their limits.

The rows repeat what is in use (decision 0054). A replay needs only the rows that state something new. After a break
every answer is new, because the callback may have answered otherwise in the meantime (decision 0080).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.errors import TidegateError
from tidegate.quota.admin.entity import Tags
from tidegate.quota.admin.sanitizer import desanitize, sanitize
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["Answer", "Answers", "are_repeated", "parsed_answer"]

_KEYS = {quota_type.key for quota_type in QuotaType}
_OWN_TAGS = {"user", "client-id"}

Numbers = npt.NDArray[Any]


class Answer(NamedTuple):
    """An answer.

    name: of the sensor; clients with one name share it, whatever their tags are called (B§3.5). tags: as JSON. pair:
    the tags as Kafka's own rules have them, None where they are others. limit: per second; None: unlimited.
    """

    quota_key: str
    user: str
    client_id: str
    callback: str
    name: str
    tags: str
    pair: Tags | None
    limit: float | None


def parsed_answer(event: Mapping[str, Any]) -> Answer:
    """Return what a `tags` row says. Raises `ValueError` where it makes no sense."""
    text, quota_key = event["tags"], event["quota_key"]
    if quota_key not in _KEYS:
        raise ValueError(f"quota_key must be a quota type of Kafka, got {quota_key!r}")
    try:
        tags = json.loads(text or "")
    except (ValueError, RecursionError) as error:
        raise ValueError("tags are not JSON") from error
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        raise ValueError("tags are not a JSON object of strings")
    return Answer(
        quota_key=quota_key,
        user=event["user"] or "",
        client_id=event["client_id"] or "",
        callback=event["callback"] or "",
        name=":".join(tags.values()),
        tags=text,
        pair=_pair(tags),
        limit=event["quota_value"],
    )


class Answers:
    """The last answer to each client, the last limit of each sensor, and whether these are certain to hold."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str, str], Answer] = {}
        self._limits: dict[tuple[str, str], float | None] = {}
        self._certain: set[tuple[str, ...]] = set()

    def store_answer(self, answer: Answer) -> bool:
        """Store an answer; return whether it states anything that was not known."""
        client, sensor = answer[:3], (answer.quota_key, answer.name)
        before = self._clients.get(client)
        is_known = (
            before is not None
            and (before.callback, before.tags) == (answer.callback, answer.tags)
            and self._limits[sensor] == answer.limit
            and client in self._certain
            and sensor in self._certain
        )
        self._clients[client] = answer
        self._limits[sensor] = answer.limit
        self._certain |= {client, sensor}
        return not is_known

    def last_answer(self, quota_key: str, user: str, client_id: str) -> Answer | None:
        """Return the last answer to a client, with the limit that its tags have by now; None: there was none."""
        answer = self._clients.get((quota_key, user, client_id))
        return None if answer is None else answer._replace(limit=self._limits[quota_key, answer.name])

    def is_certain(self, quota_key: str, user: str, client_id: str) -> bool:
        """Return whether the last answer to a client certainly still holds."""
        return (quota_key, user, client_id) in self._certain

    def lose(self) -> None:
        """Mark every answer as uncertain, because rows are missing."""
        self._certain.clear()

    def forget(self) -> None:
        """Forget all answers, because another callback answers from now on."""
        self._clients.clear()
        self._limits.clear()
        self._certain.clear()


def are_repeated(keys: Sequence[Numbers], values: Sequence[Numbers]) -> npt.NDArray[np.bool_]:
    """Return for each row whether the previous row with equal keys has equal values, too."""
    order = np.lexsort(keys)  # stable
    pairs = [(column[order][:-1], column[order][1:]) for column in (*keys, *values)]
    repeated = np.zeros(len(order), bool)
    repeated[order[1:]] = np.logical_and.reduce([before == after for before, after in pairs])
    return repeated


def _pair(tags: Mapping[str, str]) -> Tags | None:
    if not tags.keys() <= _OWN_TAGS:
        return None
    user, client_id = tags.get("user", ""), tags.get("client-id", "")
    try:
        client_id.encode()
        return (user, client_id) if sanitize(desanitize(user)) == user else None
    except (TidegateError, UnicodeError):
        return None
