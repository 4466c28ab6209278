"""The columns of the usage record, as data: schema, spool row and document are all made from this table.

Rows are events of the quota engine in order (`docs/usage-record.md`). A column is filled only in rows of
its `kinds`; elsewhere it is null where it may be null, else 0, False or the empty string.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ADDED_COLUMNS",
    "COLUMNS",
    "COLUMN_BY_NAME",
    "ENTITY_COLUMNS",
    "EXEMPT",
    "FLAGS",
    "FORMAT_KEY",
    "FORMAT_VERSION",
    "FORWARDED",
    "KINDS",
    "NAME_COLUMNS",
    "OBSERVED_ONLY",
    "REJECTED",
    "SEQ_PER_US",
    "STRICT",
    "Column",
    "empty_event",
    "empty_value",
    "format_refusal",
]

KINDS = (
    "start", "quota", "mutation", "request", "network", "expire", "gap", "clock", "callback", "tags", "forwarded",
    "snapshot",
)  # fmt: skip
"""All kinds of events. The spool stores the number of a kind in this list, from 1 (0 marks an unused row)."""

SEQ_PER_US = 1024
"""The `seq` of an imported row is the time of its decision in µs times this; the next free number if it is used."""

STRICT = 1
REJECTED = 2
EXEMPT = 4
OBSERVED_ONLY = 8
FORWARDED = 16
FLAGS = {
    "strict": STRICT,
    "rejected": REJECTED,
    "exempt": EXEMPT,
    "observed_only": OBSERVED_ONLY,
    "forwarded": FORWARDED,
}
"""Boolean columns and their bits in `flags` of the `Recorder`'s calls."""

ENTITY_COLUMNS = {"user": "quota_user", "client-id": "quota_client_id", "ip": "quota_ip"}
"""Columns of the parts of a quota entity, by its type."""

_CLIENT = ("request", "network", "mutation", "forwarded")
_REQUEST = ("request",)
_NETWORK = ("request", "network")
_DECIDED = ("request", "forwarded")
_CLIENT_NAME = (*_CLIENT, "tags")
_QUOTA = ("quota",)
_ENTITY = ("quota", "snapshot")
_LIMIT = ("quota", "tags")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its Arrow type by name, whether it may be null, its meaning and unit, and its writer."""

    name: str
    type: str
    meaning: str
    kinds: tuple[str, ...]
    nullable: bool


COLUMNS: tuple[Column, ...] = tuple(
    Column(
        name=name,
        type=type_text.removesuffix(", null"),
        nullable=", " in type_text,
        kinds=kinds,
        meaning=meaning,
    )
    for name, type_text, kinds, meaning in (
        ("kind", "string", KINDS, "kind of event ([Events](#events))"),
        (
            "ts_ms",
            "int64",
            KINDS,
            "engine time of the event, in ms since the epoch (UTC): the `now_ms` of the engine's call ([Time](#time))",
        ),
        (
            "seq",
            "int64",
            KINDS,
            "position in the order of the node's events; never repeats and never falls, also across restarts",
        ),
        ("node_id", "int32", KINDS, "node id"),
        ("listener", "string", _CLIENT, "listener name"),
        ("user", "string", _CLIENT_NAME, "principal name, not sanitised; `ANONYMOUS` without a login"),
        (
            "client_id",
            "string",
            _CLIENT_NAME,
            "client id from the request header, not sanitised; empty if it is null",
        ),
        ("client_host", "string", _CLIENT, "address of the client"),
        (
            "client_software",
            "string",
            _CLIENT,
            "name of the client library, from ApiVersions; empty if the client did not send it",
        ),
        ("client_software_version", "string", _CLIENT, "version of the client library, from ApiVersions"),
        ("api_key", "int16", _CLIENT, "Kafka's number of the API"),
        ("api_version", "int16", _CLIENT, "version of the request"),
        (
            "connection_id",
            "int64",
            _CLIENT,
            "number of the connection, rising; unique for each node, also across restarts",
        ),
        (
            "request_bytes",
            "int64",
            _REQUEST,
            "size of the request in bytes, without its 4-byte length prefix",
        ),
        (
            "response_bytes",
            "int64",
            _REQUEST,
            "size of the response in bytes, without its length prefix; 0 if there is no response",
        ),
        (
            "produce_bytes",
            "int64, null",
            _REQUEST,
            "bytes charged to the produce quota; null if the request is not charged to it",
        ),
        (
            "fetch_bytes",
            "int64, null",
            _REQUEST,
            "bytes charged to the fetch quota, also if they were taken back; null if the request is not charged to it",
        ),
        (
            "handler_ns",
            "int64",
            _REQUEST,
            "time in the handler in ns; whole microseconds, the rest is in `network_ns`",
        ),
        (
            "network_ns",
            "int64, null",
            _NETWORK,
            "network time in ns, charged with this row: to receive it, and to send the last response; whole "
            "microseconds, the rest is in the next request of the connection; null if unknown",
        ),
        ("mutations", "int64, null", ("mutation",), "requested permits, in mutations"),
        ("strict", "bool", ("mutation",), "strict mutation quota (true) or permissive (false)"),
        ("rejected", "bool", ("mutation",), "refusal of the permits (error 89)"),
        ("exempt", "bool", (*_NETWORK, "forwarded"), "charge to `exempt-request-time` instead of the client"),
        ("produce_throttle_ms", "int32", _REQUEST, "throttle time by the produce quota, in ms"),
        ("fetch_throttle_ms", "int32", _REQUEST, "throttle time by the fetch quota, in ms"),
        ("request_throttle_ms", "int32", _REQUEST, "throttle time by the request quota, in ms"),
        ("mutation_throttle_ms", "int32", _DECIDED, "throttle time by the mutation quota, in ms"),
        (
            "observed_only",
            "bool",
            _DECIDED,
            "decision without effect: recorded, but not answered and not muted",
        ),
        (
            "early_ms",
            "int32, null",
            _REQUEST,
            "rest of the throttle time when the first bytes of this request arrived, in ms; null if it was over",
        ),
        (
            "quota_user",
            "string, null",
            _ENTITY,
            "sanitised user of the entity, or `<default>`; null if it has no user. In a snapshot: tag of the sensor",
        ),
        (
            "quota_client_id",
            "string, null",
            _ENTITY,
            "sanitised client id of the entity, like `quota_user`; empty for clients without a client id",
        ),
        ("quota_ip", "string, null", _QUOTA, "address of the entity, like `quota_user`"),
        (
            "quota_key",
            "string, null",
            _LIMIT,
            "`producer_byte_rate` or another quota type, or name of a setting",
        ),
        (
            "quota_value",
            "double, null",
            _LIMIT,
            "value from this row on, in the unit of `quota_key`; null if the quota was removed or there is no limit",
        ),
        ("lost_events", "int64, null", ("gap",), "number of lost events"),
        ("wall_offset_ms", "int64", ("clock",), "wall clock minus engine time from this row on, in ms"),
        (
            "callback",
            "string, null",
            ("callback", "tags"),
            "class of the quota callback; null for Kafka's own rules",
        ),
        ("tags", "string, null", ("tags",), "tags that the callback chose, as JSON"),
        ("forwarded", "bool", _REQUEST, "permits requested from another node, the controller"),
        (
            "snapshot",
            "string, null",
            ("snapshot",),
            "`begins`, `ends` with the number of rows, or the state of a sensor as JSON",
        ),
        (
            "lag",
            "int64, null",
            _REQUEST,
            "records from the fetch offsets to the high watermarks, in all partitions; null if unknown or not a Fetch",
        ),
        (
            "lag_bytes",
            "int64, null",
            _REQUEST,
            "estimated size of these records, in bytes; null if unknown or not a Fetch",
        ),
        (
            "topic",
            "string, null",
            _REQUEST,
            "of a Produce or Fetch: topic with the most bytes of records ([Topics](#topics)); null if no topic has any",
        ),
        (
            "other_topics",
            "int32, null",
            _REQUEST,
            "number of other topics with records in this request; null if unknown or not a Produce or Fetch",
        ),
    )
)
"""Every column, in the order of the Parquet files."""

FORMAT_VERSION = 7
"""The version of the record that is written. Each change of columns increases it by one (`docs/usage-record.md`).

A Parquet file names it in its metadata, under `FORMAT_KEY`; files without it are of the versions 1 to 6.
"""

FORMAT_KEY = "tidegate.usage.format"

COLUMN_BY_NAME: Mapping[str, Column] = {column.name: column for column in COLUMNS}
ADDED_COLUMNS: Mapping[str, int] = {
    "wall_offset_ms": 2,
    "callback": 3,
    "tags": 3,
    "forwarded": 4,
    "snapshot": 5,
    "lag": 6,
    "lag_bytes": 6,
    "topic": 7,
    "other_topics": 7,
}
"""The version that added a column. In files of earlier versions it is read as `empty_value` in each row."""

NAME_COLUMNS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(
        c.name for c in COLUMNS if c.type == "string" and kind in c.kinds and c.name not in ("kind", "topic")
    )
    for kind in KINDS
}
"""The names in the rows of each kind. The spool stores them as one record; records of equal size have equal columns.

A topic has a record of its own, so that the names of a client are stored only once, however many topics it uses.
"""

_EMPTY: dict[str, Any] = {"string": "", "bool": False, "double": 0.0}


def empty_event(kind: str) -> dict[str, Any]:
    """Return an event of `kind` in which every column has the value of a column that the kind does not fill.

    >>> empty_event("expire")["handler_ns"], empty_event("expire")["mutations"]
    (0, None)
    """
    event = {column.name: empty_value(column) for column in COLUMNS}
    event["kind"] = kind
    return event


def empty_value(column: Column) -> Any:
    """Return the value of a column in rows that do not fill it."""
    return None if column.nullable else _EMPTY.get(column.type, 0)


def format_refusal(version: bytes | str) -> str | None:
    """Return why rows of a format version cannot be read; None where they can.

    >>> format_refusal(b"7"), format_refusal("8")
    (None, 'usage format 8, written by a newer version of Tidegate; this one reads 1 to 7')
    """
    text = version.decode("ascii", "replace") if isinstance(version, bytes) else version
    if text.isascii() and text.isdigit() and 1 <= int(text) <= FORMAT_VERSION:
        return None
    return f"usage format {text[:20]}, written by a newer version of Tidegate; this one reads 1 to {FORMAT_VERSION}"
