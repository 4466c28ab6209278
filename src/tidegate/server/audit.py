"""The audit log: one line for each change of quotas, ACLs, SCRAM credentials, settings and topics.

A line says which principal made the change, from which address and over which listener, and the old and the new value:

    'User:ops' from 10.0.0.7 (listener CLIENTS) altered quota of client-id='loader': producer_byte_rate none -> 65536.0

A handler opens an `Audit` for its request. The code that makes a change calls `changed` once the change is stored, so a
change that fails has no line. A client without permission gets one WARNING line for the whole request. Lines go to the
logger `tidegate.audit`; each record has the same facts as fields, for `--log-format json`.
The caller hides secrets: passwords, salts, keys.
"""

import logging
from collections.abc import Generator, Iterable, Mapping
from types import TracebackType
from typing import Final, Literal

from tidegate.config.values import cut
from tidegate.fair_share import address_owner
from tidegate.server.requests.handler import Connection

__all__ = ["AUDIT_LOGGER", "HIDDEN", "MAX_LINES", "Audit"]

AUDIT_LOGGER: Final = "tidegate.audit"
MAX_LINES: Final = 100
"""Lines for the changes of one request. A last line has the number of further changes."""
HIDDEN: Final = "[hidden]"
"""Stands for a value that is secret."""
_MAX_NAME_CHARS = 1000  # of what was changed: an ACL has three texts
_MAX_VALUE_CHARS = 200
_AT_ONCE = 10  # lines between two yields, about half a millisecond

_log = logging.getLogger(AUDIT_LOGGER)

_NAMED = ("topic", "ACL")
"""Kinds that have names of their own. Others belong to a named thing: a quota to an entity, a setting to a topic."""

Action = Literal["create", "alter", "extend", "delete"]
_PAST: Final = {"create": "created", "alter": "altered", "extend": "extended", "delete": "deleted"}
Value = str | float | None


class Audit:
    """The audit lines of one request. A context manager: at its end, it writes the line about counted changes.

    connection: the client that sent the request.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client: str | None = None
        self._changes = 0
        self._refusals = 0
        self._refused: dict[str, Value] = {}

    def __enter__(self) -> "Audit":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the number of changes that had no line, and the refusal."""
        more = self._changes - MAX_LINES
        if more > 0:
            self._write(logging.INFO, "changed", f"made {more} more changes in this request", {"count": more})
        if self._refusals:
            self._write_refusal()

    def changed(
        self,
        action: Action,
        resource: str,
        name: str,
        *,
        key: str | None = None,
        old: Value = None,
        new: Value = None,
    ) -> None:
        """Write the line of one change that is stored.

        resource: the kind of the changed resource. name: its name, as in the line. key: the name of the changed value;
        old, new: the values; None if there was or is none.
        """
        self._changes += 1
        if self._changes > MAX_LINES:
            return
        name = name[:_MAX_NAME_CHARS]
        text = f"{_PAST[action]} {_described(resource, name)}"
        fields: dict[str, Value] = {"action": action, "resource": resource, "name": name}
        if key is not None:
            key, old, new = cut(key), _cut(old), _cut(new)
            text += f": {key} {_shown(old)} -> {_shown(new)}"
            fields |= {"key": key, "old": old, "new": new}
        self._write(logging.INFO, "changed", text, fields)

    def warn(self, text: str) -> None:
        """Write a warning about a change that has a line."""
        if self._changes <= MAX_LINES:
            _log.warning("%s", text)

    def changed_in_slices(
        self,
        action: Action,
        resource: str,
        name: str,
        keys: Iterable[str],
        before: Mapping[str, Value],
        after: Mapping[str, Value],
    ) -> Generator[None, None, None]:
        """Write a line for each of `keys`, with its values before and after the change."""
        for number, key in enumerate(keys, 1):
            self.changed(action, resource, name, key=key, old=before.get(key), new=after.get(key))
            if number % _AT_ONCE == 0:
                yield

    def refused(self, action: Action, resource: str, name: str = "") -> None:
        """Count a change that the client has no permission for; the line of the request names the first."""
        self._refusals += 1
        if self._refusals == 1:
            self._refused = {"action": action, "resource": resource, "name": name[:_MAX_NAME_CHARS]}

    def _write_refusal(self) -> None:
        """Write the line about refused changes; a client that repeats them gets one a minute (`repeated_lines`)."""
        connection, fields = self._connection, self._refused
        what = f"{fields['action']} {_described(str(fields['resource']), str(fields['name']))}"
        more = f" (and {self._refusals - 1} more in this request)" if self._refusals > 1 else ""
        host = connection.client_host
        kind = f"refused {fields['action']} {fields['resource']} {host} {cut(connection.user)}"
        repeats = {"repeats": kind, "repeats_of": address_owner(host)}
        text = f"is not authorized to {what}{more}"
        self._write(logging.WARNING, "refused", text, {**fields, "count": self._refusals}, repeats)

    def _write(
        self,
        level: int,
        outcome: str,
        text: str,
        fields: Mapping[str, Value],
        repeats: Mapping[str, str] | None = None,
    ) -> None:
        connection = self._connection
        principal = f"User:{cut(connection.user)}"
        if self._client is None:
            self._client = f"{principal!r} from {connection.client_host} (listener {connection.listener})"
        audit = {
            "outcome": outcome,
            "principal": principal,
            "client_host": connection.client_host,
            "listener": connection.listener,
            **fields,
        }
        if not text.isprintable():
            text = repr(text)[1:-1]
        _log.log(level, "%s %s", self._client, text, extra={"audit": audit, **(repeats or {})})


def _described(resource: str, name: str) -> str:
    if not name:
        return resource
    return f"{resource} {name}" if resource in _NAMED else f"{resource} of {name}"


def _cut(value: Value) -> Value:
    if isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
        return f"{value[:_MAX_VALUE_CHARS]}..."
    return value


def _shown(value: Value) -> str:
    if value is None:
        return "none"
    return value if value == HIDDEN else repr(value)
