"""Requests in which one array is as long as one likes, made from the table of message definitions.

For every array of every request there are two: the same element again and again, and elements that all differ.
"""

import struct
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.limits.frames import FULL

from tidegate.wire import API_BY_KEY, write_request
from tidegate.wire.definitions import Field, layout

SAME = b"#" * 8
"""Stands in a text for a number that makes elements differ."""
NUMBER = 0x23232323
"""The same in an int32."""

TOPIC_ID = b"limits' topic id"
"""Stands for the id of the topic `limits`, which only a broker knows."""

NUMBERED = (
    "index", "partition", "partitions", "partition_index", "partition_indexes", "broker_ids", "replicas",
)  # fmt: skip
"""Fields of 32 bits that make elements differ."""

LEFT_EMPTY = ("assignments", "configs", "configuration_keys", "forgotten_topics_data")
"""Arrays that are left empty where they are not the one that is repeated: the rest holds one element."""

VALUES: Mapping[str, Any] = {
    "acks": -1,
    "allow_auto_topic_creation": False,
    "cursor": None,
    "entity_type": "client-id",
    "entity_name": "limits",
    "fetch_offset": 0,
    "group_id": "limits",
    "key": "producer_byte_rate",
    "key_type": 0,
    "match": "limits",
    "mechanism": 1,
    "max_bytes": 1_000_000,
    "max_wait_ms": 0,
    "name": "limits",
    "operation": 3,
    "partition_max_bytes": 1_000_000,
    "pattern_type_filter": 3,
    "permission_type": 3,
    "principal": "User:limits",
    "replica_id": -1,
    "resource_name": "limits",
    "resource_pattern_type": 3,
    "resource_type": 2,
    "resource_type_filter": 2,
    "response_partition_limit": 2000,
    "session_epoch": -1,
    "timeout_ms": 1000,
    "topic": "limits",
    "transactional_id": None,
    "validate_only": True,
}
"""What fields hold where a zero or an empty text would be refused too early to be of interest."""

EMPTY: Mapping[str, Any] = {
    "bool": False,
    "bytes": b"",
    "float64": 1e9,
    "records": b"",
    "string": "",
    "uuid": str(uuid.UUID(bytes=TOPIC_ID)),
}
"""What fields of a type hold otherwise; numbers are 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """An array of a request. path: the names of the fields that lead to it."""

    api_key: int
    version: int
    path: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as a test is named: `Metadata-v13-topics`."""
        return f"{API_BY_KEY[self.api_key].name}-v{self.version}-{'.'.join(self.path)}"

    def body(self, count: int, *, differ: bool) -> bytes:
        """Return a request body in which the array has `count` elements."""
        begin, length, element, end = self._parts(differ=differ)
        elements = b"".join(_different(element, count)) if differ else element * count
        size = struct.pack(">i", count) if length == struct.Struct(">i").size else _uvarint(count + 1)
        return begin + size + elements + end

    def can_differ(self) -> bool:
        """Return whether an element holds a text or a number of 32 bits to tell it from others."""
        element = self._parts(differ=True)[2]
        return SAME in element or struct.pack(">i", NUMBER) in element

    def _parts(self, *, differ: bool) -> tuple[bytes, int, bytes, bytes]:
        """Return what stands before the array's length, the length's size, one element, and what stands after."""
        one, two = (self._encode(count, differ=differ) for count in (1, 2))
        at = next(at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b) + 1
        length = 1 if API_BY_KEY[self.api_key].is_flexible(self.version) else 4
        size = len(two) - len(one)
        return one[: at - length], length, one[at : at + size], one[at + size :]

    def _encode(self, count: int, *, differ: bool) -> bytes:
        fields = layout(self.api_key, self.version, "request").fields
        return bytes(
            write_request(self.api_key, self.version, _message(fields, self.path, count, differ=differ))
        )


def repeats(api_keys: Iterator[int]) -> list[Repeat]:
    """Return the arrays of the requests, each in the oldest and the newest version, and one between them if `FULL`."""
    found = []
    for key in sorted(api_keys):
        api = API_BY_KEY[key]
        for version in sorted(
            {api.min_version, api.max_version, *([api.flexible_since or 0] if FULL else [])}
        ):
            paths = _paths(layout(key, version, "request").fields)
            found += [Repeat(api_key=key, version=version, path=path) for path in paths]
    return found


def _paths(fields: tuple[Field, ...]) -> Iterator[tuple[str, ...]]:
    for field in fields:
        if field.tag is None:
            if field.array:
                yield (field.name,)
            for path in _paths(field.fields):
                yield (field.name, *path)


def _message(fields: tuple[Field, ...], path: tuple[str, ...], count: int, *, differ: bool) -> dict[str, Any]:
    """Return a structure: the array that `path` leads to has `count` elements, those on the way to it have one."""
    message = {}
    for field in fields:
        if field.tag is not None:
            continue
        if not path or field.name != path[0]:
            message[field.name] = _plain(field, differ=differ and not path)
            continue
        element = _element(field, path[1:], count, differ=differ)
        message[field.name] = [element] * (count if len(path) == 1 else 1)
    return message


def _element(field: Field, path: tuple[str, ...] = (), count: int = 0, *, differ: bool) -> Any:
    if field.type == "struct":
        return _message(field.fields, path, count, differ=differ)
    return _plain(field.element(), differ=differ and not path)


def _plain(field: Field, *, differ: bool) -> Any:
    """Return the value of a field that does not lead to the array."""
    if field.array:
        return [] if field.name in LEFT_EMPTY else [_element(field, differ=differ)]
    if differ and field.type == "string" and field.name not in ("entity_type", "key"):
        return SAME.decode()
    if differ and field.type == "uuid":
        return str(uuid.UUID(bytes=SAME + SAME))
    if differ and field.type == "int32" and field.name in NUMBERED:
        return NUMBER
    if field.name in VALUES:
        return VALUES[field.name]
    return EMPTY.get(field.type, 0)


def _different(element: bytes, count: int) -> Iterator[bytes]:
    if SAME in element:
        before, _, after = element.partition(SAME)
        return (b"%b%08d%b" % (before, number, after) for number in range(count))
    before, _, after = element.partition(struct.pack(">i", NUMBER))
    return (b"%b%b%b" % (before, struct.pack(">i", number), after) for number in range(count))


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
