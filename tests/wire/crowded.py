"""Request bodies that are as many structures as their bytes can hold: the hardest that a reader can be given."""

from collections.abc import Iterator

from tidegate.wire.definitions import FIXED_SIZES, Field, layout
from tidegate.wire.primitives import uvarint

__all__ = ["crowded_bodies", "tagged_body"]


def crowded_bodies(api_key: int, api_version: int, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield, for each array of a request, (its path, a body of `size` bytes filled with its least elements)."""
    found = layout(api_key, api_version, "request")
    for path in _arrays(found.fields):
        body = _struct(found.fields, path, size, flexible=found.flexible)
        yield ".".join(path), body


def tagged_body(api_key: int, api_version: int, tags: bytes) -> bytes:
    """Return the least body of a flexible request with these tagged fields at its end."""
    found = layout(api_key, api_version, "request")
    return _struct(found.fields, (), 0, flexible=True)[:-1] + tags


def _arrays(fields: tuple[Field, ...]) -> Iterator[tuple[str, ...]]:
    for field in fields:
        if field.tag is None:
            if field.array:
                yield (field.name,)
            yield from ((field.name, *path) for path in _arrays(field.fields))


def _struct(fields: tuple[Field, ...], path: tuple[str, ...], size: int, *, flexible: bool) -> bytes:
    """Return the least structure, but for the array at `path`: it takes up the rest of `size` bytes."""
    parts = [
        b"" if path[:1] == (field.name,) else _least(field, flexible=flexible)
        for field in fields
        if field.tag is None
    ]
    if path:
        place = [field.name for field in fields if field.tag is None].index(path[0])
        left = size - sum(map(len, parts))
        parts[place] = _full(fields[_place(fields, path[0])], path[1:], left, flexible=flexible)
    return b"".join(parts) + b"\0" * flexible


def _place(fields: tuple[Field, ...], name: str) -> int:
    return next(place for place, field in enumerate(fields) if field.name == name)


def _full(field: Field, path: tuple[str, ...], size: int, *, flexible: bool) -> bytes:
    """Return an array or structure that takes up `size` bytes, or whose inner array at `path` does."""
    if path:
        inner = _struct(field.fields, path, size - 10, flexible=flexible)
        if field.array:
            return _count(1, flexible=flexible) + inner
        return b"\1" * field.nullable + inner
    one = _least(field.element(), flexible=flexible)
    many = max((size - 5) // len(one), 0)
    return _count(many, flexible=flexible) + one * many


def _count(count: int, *, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else count.to_bytes(4)


def _least(field: Field, *, flexible: bool) -> bytes:
    """Return the least bytes of a value: empty, not null, so that something is made of it."""
    if field.array or field.type in ("bytes", "records"):
        return _count(0, flexible=flexible)
    if field.type == "string":
        return b"\1" if flexible else b"\0\0"
    if field.type != "struct":
        return bytes(FIXED_SIZES[field.type])
    return b"\1" * field.nullable + _struct(field.fields, (), 0, flexible=flexible)
