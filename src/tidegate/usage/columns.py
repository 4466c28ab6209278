"""The columns of the usage record, as data: schema, spool row and document are all made from this table.

Rows are events of the quota engine in order (`docs/usage-record.md`). A column is filled only in rows of
its `kinds`; elsewhere it is null where it may be null, else 0, False or the empty string.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ADDED_COLUMNS",
    "COLUMNS",
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
    "document_table",
    "empty_event",
    "empty_value",
    "format_refusal",
]

KINDS = (
    "start", "quota", "mutation", "request", "network", "expire", "gap", "clock", "callback", "tags", "forwarded",
    "snapshot",
)  # fmt: skip
"""Every event there is; the spool stores a kind as its place here, counted from 1 (0 marks an unused row)."""

SEQ_PER_US = 1024
"""`seq` of an imported row is the time of its decision in µs times this, and more where that is taken."""

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
    """One column: its Arrow type by name, whether it may be null, its meaning and unit, and who fills it."""

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
        ("kind", "string", KINDS, "what happened, see above"),
        ("ts_ms", "int64", KINDS, "ms since the epoch (UTC), engine time: the `now_ms` the engine was given"),
        ("seq", "int64", KINDS, "order of one node's events; never repeats, never falls, restarts included"),
        ("node_id", "int32", KINDS, "the node"),
        ("listener", "string", _CLIENT, "listener name"),
        ("user", "string", _CLIENT_NAME, "principal name, raw (`ANONYMOUS` without authentication)"),
        ("client_id", "string", _CLIENT_NAME, "from the request header, raw; a null client id is empty"),
        ("client_host", "string", _CLIENT, "address of the client"),
        ("client_software", "string", _CLIENT, "name in the connection's ApiVersions; empty: it sent none"),
        ("client_software_version", "string", _CLIENT, "version in there"),
        ("api_key", "int16", _CLIENT, "Kafka's number of the API"),
        ("api_version", "int16", _CLIENT, "version of the request"),
        ("connection_id", "int64", _CLIENT, "counts up; unique per node, restarts included"),
        ("request_bytes", "int64", _REQUEST, "received request without its 4-byte length prefix"),
        (
            "response_bytes",
            "int64",
            _REQUEST,
            "sent response without its length prefix; 0 when there is none",
        ),
        ("produce_bytes", "int64, null", _REQUEST, "charged to the produce quota; null: charges none"),
        (
            "fetch_bytes",
            "int64, null",
            _REQUEST,
            "charged to the fetch quota, as attempted (also when taken back); null: charges none",
        ),
        ("handler_ns", "int64", _REQUEST, "time in the handler"),
        (
            "network_ns",
            "int64, null",
            _NETWORK,
            "network time charged with this row: receiving it, sending the answer before it; null: not known",
        ),
        ("mutations", "int64, null", ("mutation",), "permits asked for"),
        ("strict", "bool", ("mutation",), "the mutation quota object was strict"),
        ("rejected", "bool", ("mutation",), "the permits were refused (error 89)"),
        (
            "exempt",
            "bool",
            (*_NETWORK, "forwarded"),
            "charged to `exempt-request-time` instead of the client",
        ),
        ("produce_throttle_ms", "int32", _REQUEST, "throttle time the produce quota asked for"),
        ("fetch_throttle_ms", "int32", _REQUEST, "throttle time the fetch quota asked for"),
        ("request_throttle_ms", "int32", _REQUEST, "throttle time the request quota asked for"),
        ("mutation_throttle_ms", "int32", _DECIDED, "throttle time the mutation quota asked for"),
        ("observed_only", "bool", _DECIDED, "decided and reported, not muted"),
        (
            "early_ms",
            "int32, null",
            _REQUEST,
            "its first bytes came so long before the throttle of the request before it was over; null: not early",
        ),
        (
            "quota_user",
            "string, null",
            _ENTITY,
            "sanitised name, `<default>` for the default entity, null where the level is not used; "
            "of a snapshot: the sensor's tag",
        ),
        ("quota_client_id", "string, null", _ENTITY, "likewise; empty: clients without an id"),
        ("quota_ip", "string, null", _QUOTA, "likewise"),
        ("quota_key", "string, null", _LIMIT, "`producer_byte_rate`, … or a window setting, see below"),
        ("quota_value", "double, null", _LIMIT, "the value from here on; null: removed, or no limit"),
        ("lost_events", "int64, null", ("gap",), "how many events are missing"),
        ("wall_offset_ms", "int64", ("clock",), "wall clock less engine time, from here on"),
        (
            "callback",
            "string, null",
            ("callback", "tags"),
            "class of the quota callback; null: Kafka's own rules",
        ),
        ("tags", "string, null", ("tags",), "the tags that the callback chose, as JSON"),
        ("forwarded", "bool", _REQUEST, "its permits were asked of another node, the controller"),
        (
            "snapshot",
            "string, null",
            ("snapshot",),
            "`begins`, `ends` and how many rows, or a sensor's state as JSON",
        ),
        (
            "lag",
            "int64, null",
            _REQUEST,
            "records from where a Fetch reads to the high watermarks, over its partitions; null: not known, no Fetch",
        ),
        (
            "lag_bytes",
            "int64, null",
            _REQUEST,
            "what these records take, estimated; null: not known, no Fetch",
        ),
    )
)
"""Every column, in the order of the Parquet files."""

FORMAT_VERSION = 6
"""The version of the record that is written: one more for each change of columns (`docs/usage-record.md`).

A Parquet file names it in its metadata, under `FORMAT_KEY`; files without it are of the versions 1 to 6.
"""

FORMAT_KEY = "tidegate.usage.format"

ADDED_COLUMNS: Mapping[str, int] = {
    "wall_offset_ms": 2,
    "callback": 3,
    "tags": 3,
    "forwarded": 4,
    "snapshot": 5,
    "lag": 6,
    "lag_bytes": 6,
}
"""The version that brought a column. Earlier files lack it, and are read as if each row had `empty_value`."""

NAME_COLUMNS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(c.name for c in COLUMNS if c.type == "string" and kind in c.kinds and c.name != "kind")
    for kind in KINDS
}
"""The names in the row of each kind, which the spool keeps as one record. Records of a size hold the same columns."""

_EMPTY: dict[str, Any] = {"string": "", "bool": False, "double": 0.0}


def empty_event(kind: str) -> dict[str, Any]:
    """Return an event of `kind` with every column at the value it has when the kind does not fill it.

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

    >>> format_refusal(b"6"), format_refusal("7")
    (None, 'usage format 7, written by a newer version of Tidegate; this one reads 1 to 6')
    """
    text = version.decode("ascii", "replace") if isinstance(version, bytes) else version
    if text.isascii() and text.isdigit() and 1 <= int(text) <= FORMAT_VERSION:
        return None
    return f"usage format {text[:20]}, written by a newer version of Tidegate; this one reads 1 to {FORMAT_VERSION}"


def document_table(columns: Iterable[Column] = COLUMNS) -> str:
    """Return the table of columns as it stands in `docs/usage-record.md`."""
    lines = ["| column | type | in rows | unit, meaning |", "|---|---|---|---|"]
    for column in columns:
        type_text = f"{column.type}, null" if column.nullable else column.type
        kinds = "all" if column.kinds == KINDS else ", ".join(column.kinds)
        lines.append(f"| `{column.name}` | {type_text} | {kinds} | {column.meaning} |")
    return "\n".join(lines)
