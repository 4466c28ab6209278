"""Requests with an odd value each: every text, id, number and array in turn, as strange as it can be.

And with two values at a time that say nothing: null, none, zero or unknown.
"""

import copy
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

from tests.batches import build_batch

from tidegate.wire import encode_request
from tidegate.wire.definitions import Field, layout

__all__ = ["NOT_UTF8", "ODD_TEXTS", "odd_frames", "plain_message"]

NOT_UTF8 = "\x7f"
"""Stands for a byte that is no UTF-8 until the frame is made: read, each is a text of three bytes."""
UNKNOWN_ID = "00000000-0000-0000-0000-0000000000fe"

ODD_TEXTS = {
    "empty": "",
    "unknown": "no-such-name",
    "long": "a" * 32_760,
    "longest": "a" * 32_767,
    "quoted": "'" * 32_700,
    "wide": "é" * 16_380,
    "not-utf8": NOT_UTF8 * 300,
    "long-not-utf8": NOT_UTF8 * 12_000,
    "longest-not-utf8": NOT_UTF8 * 32_767,
    "nul": "a\0b",
}
_NUMBERS = {"int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63}


def odd_frames(api_key: int, api_version: int, *, correlation_id: int = 7) -> Iterator[tuple[str, bytes]]:
    """Yield (what is odd, the request frame without its length) for a plain request, each field odd in turn."""
    message = plain_message(api_key, api_version)
    fields = layout(api_key, api_version, "request").fields
    paths = list(_paths(fields, message))
    changes = [[(path, *odd)] for path, field in paths for odd in _odd_values(field)]
    for (one, field), (other, other_field) in combinations(paths, 2):
        if other[: len(one)] != one:
            changes += [
                [(one, *odd), (other, *other_odd)]
                for odd, other_odd in product(_absent_values(field), _absent_values(other_field))
            ]
    for change in changes:
        odd_message = copy.deepcopy(message)
        for path, _, value in change:
            _put(odd_message, path, value)
        frame = encode_request(api_key, api_version, correlation_id, "x", odd_message)[4:]
        for _, _, value in change:
            if isinstance(value, str) and NOT_UTF8 in value:
                frame = frame.replace(value.encode(), b"\xff" * len(value))
        yield " ".join(f"{'.'.join(map(str, path))}={label}" for path, label, _ in change), frame


def plain_message(api_key: int, api_version: int) -> dict[str, Any]:
    """Return a request with one element in each array, about a topic, group or client called `x`."""
    return _plain_struct(
        layout(api_key, api_version, "request").fields, {**_PLAIN, **_PLAIN_OF.get(api_key, {})}
    )


def _plain_struct(fields: tuple[Field, ...], plain: dict[str, Any]) -> dict[str, Any]:
    return {field.name: _plain(field, plain) for field in fields}


def _plain(field: Field, plain: dict[str, Any]) -> Any:
    if field.name in plain:
        return plain[field.name]
    if field.tag is not None:
        return field.default
    value = _plain_struct(field.fields, plain) if field.type == "struct" else _PLAIN_TYPES[field.type]
    return [value] if field.array else value


_PLAIN_TYPES: dict[str, Any] = {
    "bool": False, "int8": 0, "int16": 0, "uint16": 0, "int32": 0, "int64": 0, "float64": 0.0, "string": "x",
    "bytes": b"", "records": b"", "uuid": "00000000-0000-0000-0000-000000000000",
}  # fmt: skip
_PLAIN: dict[str, Any] = {
    "acks": 1, "client_software_version": "1", "configuration_keys": None, "count": 2, "current_leader_epoch": -1,
    "cursor": None, "endpoint_type": 1, "entity_type": "client-id", "generation_id_or_member_epoch": -1,
    "group_instance_id": None, "key": "producer_byte_rate", "last_fetched_epoch": -1, "log_start_offset": -1,
    "max_bytes": 1000, "member_id": "", "num_partitions": 1, "partition_max_bytes": 1000, "producer_epoch": -1,
    "producer_id": -1, "records": build_batch([(None, b"v")]), "replica_id": -1, "replication_factor": 1,
    "resource_type": 2, "response_partition_limit": 10, "session_epoch": -1, "timeout_ms": 1000, "timestamp": -1,
    "transactional_id": None, "validate_only": False,
}  # fmt: skip
_ACL = {
    "resource_type_filter": 2, "pattern_type_filter": 3, "resource_pattern_type": 3, "principal": "User:x",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
_PLAIN_OF: dict[int, dict[str, Any]] = {
    19: {"value": "1000", "name": "x", "assignments": []},
    29: _ACL,
    30: _ACL,
    31: _ACL,
    37: {"assignments": None},
    49: {"value": 1000.0},
    60: {"include_cluster_authorized_operations": True},
}


def _paths(
    fields: tuple[Field, ...], value: Any, before: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Field]]:
    for field in fields:
        path = (*before, field.name)
        yield path, field
        inner = value[field.name]
        if field.array:
            if inner:
                yield (*path, 0), field.element()
                if field.type == "struct":
                    yield from _paths(field.fields, inner[0], (*path, 0))
        elif field.type == "struct" and inner is not None:
            yield from _paths(field.fields, inner, path)


def _odd_values(field: Field) -> Iterator[tuple[str, Any]]:
    if field.nullable:
        yield "null", None
    if field.array:
        yield "none", []
    elif field.type == "string":
        yield from ODD_TEXTS.items()
    elif field.type == "uuid":
        yield "unknown", UNKNOWN_ID
        yield "zero", "00000000-0000-0000-0000-000000000000"
    elif field.type in _NUMBERS:
        most = _NUMBERS[field.type]
        yield from (("least", -most), ("most", most - 1), ("minus-one", -1), ("zero", 0))


def _absent_values(field: Field) -> list[tuple[str, Any]]:
    """Return the odd values that say nothing: null, none, zero and unknown."""
    return [odd for odd in _odd_values(field) if odd[0] in ("null", "none", "empty", "unknown", "zero")]


def _put(message: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        message = message[step]
    message[path[-1]] = value
