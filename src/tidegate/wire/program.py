"""A compiled reader or writer, and where in a message it failed when it did.

Compiled code is straight-line code without checks of its own for what Python checks anyway: reading past the end
raises `struct.error` or `IndexError`, a missing key `KeyError`. When that happens the line that failed gives the field,
and the variables of the function give the offset and the array indexes. Nothing is spent on it before.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

__all__ = ["Failure", "Member", "Path", "Program", "Spot", "failure"]

Path = tuple[tuple[str, str | None], ...]
"""Field names from the outside in, each with the variable that holds an array's index, or `items/element`."""


class Member(NamedTuple):
    """One of several values that a line reads or packs: its `struct` type, the text of its value, its field."""

    code: str
    value: str
    path: Path


class Spot(NamedTuple):
    """Message field that one source line is about, or several that it reads or packs together."""

    path: Path
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled reader or writer.

    function: the compiled function. spots: the field that each line is about. text: the source.
    """

    title: str
    function: Callable[..., Any]
    file_name: str
    spots: tuple[Spot, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Position at which a program failed: the field, the byte to be read, and the value that could not be written."""

    path: str
    at: int
    remaining: int
    value: Any = None


def failure(program: Program, traceback: TracebackType | None) -> Failure:
    """Return where the innermost line of `program` in a traceback failed."""
    parts: list[str] = []
    found = Failure(path="", at=0, remaining=0)
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename == program.file_name:
            spot, variables = program.spots[traceback.tb_lineno - 1], frame.f_locals
            path, found = _at_spot(spot, variables, frame.f_globals)
            parts += [_step(name, index, variables) for name, index in path]
        traceback = traceback.tb_next
    return Failure(path=".".join(parts), at=found.at, remaining=found.remaining, value=found.value)


def _at_spot(spot: Spot, variables: Mapping[str, Any], bound: dict[str, Any]) -> tuple[Path, Failure]:
    """Return the field that failed among those of one line, and what is known of it."""
    # Only readers have `buf`.
    if "buf" in variables:
        return _unread(spot, variables.get("at", 0), len(variables["buf"]))
    # Each value is packed again by itself: the first that fails is the field in question.
    for member in spot.members:
        value = None
        try:
            value = eval(member.value, bound, variables)  # our own text, made from our own table
            struct.pack(">" + member.code, value)
        except Exception:
            return member.path, Failure(path="", at=0, remaining=0, value=value)
    return spot.path, Failure(path="", at=0, remaining=0)


def _unread(spot: Spot, at: int, end: int) -> tuple[Path, Failure]:
    """Return the first field of a line for which too few bytes remain."""
    path = spot.path
    for member in spot.members:
        path, size = member.path, struct.calcsize(">" + member.code)
        if at + size > end:
            break
        at += size
    return path, Failure(path="", at=at, remaining=max(end - at, 0))


def _step(name: str, index: str | None, variables: Mapping[str, Any]) -> str:
    """Return one step of a path: `topics[2]`. A writer's index is found by the element that it was at."""
    if index is None:
        return name
    items, _, element = index.partition("/")
    if not element:
        return f"{name}[{variables.get(items, '')}]"
    found = (place for place, value in enumerate(variables.get(items, ())) if value is variables.get(element))
    return f"{name}[{next(found, '')}]"
