"""The table of message definitions, `definitions.json`, as fields of one message in one version.

The table holds every API that a Kafka 4.3.1 broker speaks to its clients and to other brokers. It is written by
`make codecs`; each field is one line with its range of versions.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pkgutil import get_data
from typing import Any, Literal

from tidegate.wire.codec_types import ZERO_ID

__all__ = [
    "FIXED_CODES",
    "REQUIRED",
    "Direction",
    "Field",
    "Layout",
    "empty_value",
    "field_since",
    "layout",
    "minimum_size",
    "table",
]

Direction = Literal["request", "response"]

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()
"""Stands for the default of a field that has none: a writer must be given a value."""

FIXED_CODES: Mapping[str, str] = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The `struct` type of each type of fixed width."""
FIXED_SIZES: Mapping[str, int] = {name: struct.calcsize(">" + code) for name, code in FIXED_CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field in one version. `type` is that of an element where `array` is set."""

    name: str
    type: str
    array: bool
    nullable: bool
    default: Any
    tag: int | None
    fields: tuple["Field", ...]

    def element(self) -> "Field":
        """Return the field of one element of this array."""
        return replace(self, array=False, nullable=False, default=REQUIRED, tag=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of one message in one version. flexible: compact lengths and tagged fields (KIP-482)."""

    name: str
    direction: Direction
    version: int
    flexible: bool
    fields: tuple[Field, ...]

    def __str__(self) -> str:
        """Return the message as errors name it: `Fetch response v12`."""
        return f"{self.name} {self.direction} v{self.version}"


@cache
def table() -> Mapping[str, Any]:
    """Return the parsed `definitions.json`."""
    parsed: Mapping[str, Any] = json.loads(get_data("tidegate.wire", "definitions.json") or b"")
    return parsed


def layout(
    api_key: int, api_version: int, direction: Direction, messages: Mapping[str, Any] | None = None
) -> Layout:
    """Return the layout of a message. Raises `KeyError` where the table has no such message.

    messages: another table in the format of `definitions.json`.
    """
    messages = table() if messages is None else messages
    (facts,) = [api for api in messages["apis"] if api["key"] == api_key] or [None]
    if facts is None or not facts["min_version"] <= api_version <= facts["max_version"]:
        raise KeyError((api_key, api_version))
    since = facts["flexible_since"]
    return Layout(
        name=facts["name"],
        direction=direction,
        version=api_version,
        flexible=since is not None and api_version >= since,
        fields=_fields(messages["messages"][str(api_key)][direction], api_version),
    )


def field_since(api_key: int, direction: Direction, name: str, *, nullable: bool = False) -> int:
    """Return the first version whose message has a field `name` at any depth, 0 where all have it.

    >>> field_since(1, "request", "topic_id")
    13

    nullable: look for a field that may be null. Raises `KeyError` where no version has one.
    """
    found = [
        since
        for line, since in _with_inner(table()["messages"][str(api_key)][direction])
        if line["name"] == name and (line.get("nullable", False) or not nullable)
    ]
    if not found:
        raise KeyError((api_key, direction, name))
    return min(found)


def minimum_size(field: Field, *, flexible: bool) -> int:
    """Return the least number of bytes that a value of this field takes on the wire."""
    if field.array or field.type not in ("struct", *FIXED_SIZES):
        return 1 if flexible else 2 if field.type == "string" and not field.array else 4
    if field.type != "struct":
        return FIXED_SIZES[field.type]
    return 1 if field.nullable else minimum_struct_size(field.fields, flexible=flexible)


def minimum_struct_size(fields: Iterable[Field], *, flexible: bool) -> int:
    """Return the least number of bytes that a structure of these fields takes on the wire."""
    return sum(minimum_size(field, flexible=flexible) for field in fields if field.tag is None) + flexible


def _fields(lines: Iterable[Mapping[str, Any]], version: int) -> tuple[Field, ...]:
    return tuple(_field(line, version) for line in lines if _holds(line.get("versions"), version))


def _with_inner(
    lines: Iterable[Mapping[str, Any]], outer_since: int = 0
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield every line of a message, and the first version that it and those around it hold for."""
    for line in lines:
        since = max(outer_since, line.get("versions", (0,))[0])
        yield line, since
        yield from _with_inner(line.get("fields", ()), since)


def _holds(versions: list[int] | None, version: int) -> bool:
    return versions is None or versions[0] <= version <= versions[1]


def _field(line: Mapping[str, Any], version: int) -> Field:
    array = line["type"].startswith("[]")
    fields = _fields(line.get("fields", ()), version)
    wire_type = line["type"].removeprefix("[]")
    return Field(
        name=line["name"],
        type=wire_type,
        array=array,
        nullable=line.get("nullable", False),
        default=_default(line, fields, is_struct=wire_type == "struct" and not array),
        tag=line.get("tag"),
        fields=fields,
    )


def _default(line: Mapping[str, Any], fields: tuple[Field, ...], *, is_struct: bool) -> Any:
    """Return the value of an absent field. The front fills in the throttle time, so a handler may leave it out."""
    if line["name"] == "throttle_time_ms":
        return 0
    if is_struct and "tag" in line and "default" not in line:
        return {field.name: field.default for field in fields}
    return line.get("default", _implicit(line["type"]) if "tag" in line else REQUIRED)


def _implicit(wire_type: str) -> Any:
    zero = {"bool": False, "float64": 0.0, "string": "", "uuid": "00000000-0000-0000-0000-000000000000"}
    return zero.get(wire_type, 0)


def empty_value(field: Field) -> Any:
    """Return the default of a field; where it has none, its empty value."""
    if field.default is not REQUIRED:
        return field.default
    if field.nullable:
        return None
    if field.array:
        return []
    if field.type == "struct":
        return {inner.name: empty_value(inner) for inner in field.fields}
    return {"string": "", "bytes": b"", "records": None, "bool": False, "uuid": ZERO_ID}.get(field.type, 0)
