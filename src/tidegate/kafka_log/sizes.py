"""The size of a message on the wire, in bytes, computed from its entry in the request log.

The log has every field of a request and of its response as JSON, but not the size of either; of records it has only the
size. Kafka charges sizes, so this module adds them up again, from the definitions that the codecs are made of. The
function for a message and version is one expression, compiled at its first use.

Follows: Kafka's message generator (lengths, KIP-482), and its `JsonConverter` classes for the names.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pkgutil import get_data
from typing import Any

from tidegate.wire import API_BY_KEY
from tidegate.wire.definitions import FIXED_SIZES, Direction, Field, Layout, layout

__all__ = ["body_size", "request_size", "response_size"]

_Size = Callable[[Mapping[str, Any]], int]

_REQUEST_HEADER_BYTES = 10  # api key, version, correlation id and the length of the client id
_RESPONSE_HEADER_BYTES = 4


def request_size(api_key: int, api_version: int, client_id: str, body: Mapping[str, Any]) -> int:
    """Return the bytes of a request, header and body without the length prefix: what the produce quota charges.

    Raises `KeyError` for an API or version that is not known and a field that is not there, `TypeError` and
    `ValueError` for a field of another type. A client id that is null is shorter by none: its length says so.

    >>> request_size(3, 0, "app", {"topics": [{"name": "orders"}]})
    25
    """
    tags = API_BY_KEY[api_key].is_flexible(api_version)
    return _REQUEST_HEADER_BYTES + _utf8(client_id) + tags + body_size(api_key, api_version, "request")(body)


def response_size(api_key: int, api_version: int, body: Mapping[str, Any]) -> int:
    """Return the bytes of a response, header and body without the length prefix. Raises what `request_size` does."""
    tags = API_BY_KEY[api_key].has_tagged_response_header(api_version)
    return _RESPONSE_HEADER_BYTES + tags + body_size(api_key, api_version, "response")(body)


@cache
def body_size(api_key: int, api_version: int, direction: Direction) -> _Size:
    """Return a function from the JSON of a message's body to its bytes."""
    message = _layout(api_key, api_version, direction)
    text = _struct(message.fields, "m", message.flexible)
    # Safe: the text is made of our own definitions, never of the log.
    size: _Size = eval(compile(f"lambda m: {text}", f"<size of {message}>", "eval"), _NAMES)
    return size


def _layout(api_key: int, api_version: int, direction: Direction) -> Layout:
    """Return the layout of a message that any broker of 2.8 to 4.3 speaks."""
    if api_version >= API_BY_KEY[api_key].min_version:
        return layout(api_key, api_version, direction)
    return layout(api_key, api_version, direction, _older_messages())


@cache
def _older_messages() -> Mapping[str, Any]:
    """Return the versions that 4.3 speaks no more: `make older-messages` writes them."""
    found: Mapping[str, Any] = json.loads(get_data("tidegate.kafka_log", "older_messages.json") or b"")
    return found


def _struct(fields: tuple[Field, ...], value: str, flexible: bool) -> str:
    """Return the text of an expression: the bytes of a structure that `value` stands for."""
    fixed, parts = int(flexible), []  # the number of tagged fields: below 128 of them, one byte
    for field in fields:
        if field.tag is not None:
            parts.append(_tagged(field, value))
            continue
        size = None if field.array else FIXED_SIZES.get(field.type)
        if size is None:
            parts.append(_value(field, _member(field, value), flexible))
        else:
            fixed += size
    return " + ".join([str(fixed), *parts])


def _member(field: Field, value: str) -> str:
    """Return the text of a member; record bytes are not in the log, and stand there by their size."""
    if field.type == "records":
        return f"{value}.get('recordsSizeInBytes')"
    return f"{value}[{_camel(field.name)!r}]"


def _tagged(field: Field, value: str) -> str:
    """Return the text for a tagged field: it is in the log where it was set."""
    name = _camel(field.name)
    size = _value(field, f"{value}[{name!r}]", flexible=True)
    if not field.array and field.type in FIXED_SIZES:
        size = str(FIXED_SIZES[field.type])
    return f"(_tagged({field.tag}, {size}) if {name!r} in {value} else 0)"


def _value(field: Field, value: str, flexible: bool) -> str:
    """Return the text for the bytes of a value of variable size."""
    compact = "compact" if flexible else "plain"
    if field.array:
        element = FIXED_SIZES.get(field.type)
        count = f"_{compact}_count({value})"
        if element is not None:
            return f"{count} + {element} * len({value} or ())"
        inner = _value(field.element(), f"e{_depth(value)}", flexible)
        return f"{count} + sum([{inner} for e{_depth(value)} in {value} or ()])"
    if field.type == "struct":
        text = _struct(field.fields, value, flexible)
        return f"(1 if {value} is None else 1 + {text})" if field.nullable else f"({text})"
    return f"_{compact}_{field.type}({value})"


def _depth(value: str) -> int:
    """Return a number for the variable of a loop inside `value`, which no loop around it has."""
    return int(value[1]) + 1 if value[0] == "e" else 0


def _camel(name: str) -> str:
    """Return the name that Kafka gives a field in JSON.

    >>> _camel("throttle_time_ms")
    'throttleTimeMs'
    """
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


_ONE_BYTE = 1 << 7
"""Numbers below it are unsigned varints of one byte: nearly all lengths are."""


def _varint(number: int) -> int:
    """Return the bytes of an unsigned varint."""
    return 1 if number < _ONE_BYTE else (number.bit_length() + 6) // 7


def _utf8(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _base64(text: str) -> int:
    return len(text) * 3 // 4 - text.endswith("=") - text.endswith("==")


def _compact(size: int) -> int:
    return size + 1 if size < _ONE_BYTE - 1 else size + _varint(size + 1)


def _compact_string(text: str | None) -> int:
    if text is None:
        return 1
    size = len(text)
    return size + 1 if size < _ONE_BYTE - 1 and text.isascii() else _compact(_utf8(text))


_NAMES: dict[str, Any] = {
    "_tagged": lambda tag, size: _varint(tag) + _varint(size) + size,
    "_plain_count": lambda array: 4,
    "_compact_count": lambda array: 1 if array is None else _varint(len(array) + 1),
    "_plain_string": lambda text: 2 if text is None else 2 + _utf8(text),
    "_compact_string": _compact_string,
    "_plain_bytes": lambda text: 4 if text is None else 4 + _base64(text),
    "_compact_bytes": lambda text: 1 if text is None else _compact(_base64(text)),
    "_plain_records": lambda size: 4 if size is None else 4 + size,
    "_compact_records": lambda size: 1 if size is None else _compact(size),
}
