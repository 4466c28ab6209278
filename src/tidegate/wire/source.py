"""Source text of a compiled reader or writer, with the message field that each line is about.

What the lines are about is kept beside them, for `program.failure` to say where something went wrong.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tidegate.wire.definitions import Field
from tidegate.wire.program import Member, Path, Program, Spot

__all__ = ["Source", "repeated_structs"]


@dataclass(slots=True)
class _Function:
    """One function under construction: its lines, and for each what it is about."""

    header: str
    lines: list[str] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)


@dataclass(slots=True)
class Source:
    """Functions under construction, in slices generators. `path` is the field that lines written now are about."""

    in_slices: bool = False
    finished: list[_Function] = field(default_factory=list)
    open: list[_Function] = field(default_factory=list)
    structs: dict[str, struct.Struct] = field(default_factory=dict)
    path: Path = ()
    depth: int = 1
    _names: int = 0

    def line(self, text: str, *members: Member) -> None:
        """Add one line at the present indentation; `members` are the fields that it reads or packs together."""
        self.open[-1].lines.append(" " * self.depth + text)
        self.open[-1].spots.append(Spot(self.path, members))

    def slice_ends(self) -> None:
        """Add a `yield` here, in slices, so that other work can run."""
        if self.in_slices:
            self.line("yield")

    @contextmanager
    def indented(self, text: str = "") -> Iterator[None]:
        """Write `text`, then what follows inside of it."""
        if text:
            self.line(text)
        self.depth += 1
        yield
        self.depth -= 1

    @contextmanager
    def function(self, name: str, parameters: str) -> Iterator[None]:
        """Write a function of its own; its paths begin anew, they are joined with the caller's.

        In slices it is a generator, whether anything in it yields or not.
        """
        depth, path = self.depth, self.path
        self.depth, self.path = 1, ()
        self.open.append(_Function(f"def {name}({parameters}):"))
        self.slice_ends()
        yield
        self.finished.append(self.open.pop())
        self.depth, self.path = depth, path

    @contextmanager
    def about(self, name: str, index: str | None = None) -> Iterator[None]:
        """Mark the lines that follow as lines about a field inside the present field."""
        outer = self.path
        self.path = (*outer, (name, index))
        yield
        self.path = outer

    @contextmanager
    def about_element(self, index: str) -> Iterator[None]:
        """Mark the lines that follow as lines about an element of the present field."""
        outer = self.path
        self.path = (*outer[:-1], (outer[-1][0], index))
        yield
        self.path = outer

    def name(self, stem: str) -> str:
        """Return a name not used before."""
        self._names += 1
        return f"{stem}{self._names}"

    def struct_method(self, code: str, method: str) -> str:
        """Return the name that holds `method` of the big-endian struct `code`."""
        name = f"{method}_{code.replace('?', 'o')}"
        if name not in self.structs:
            self.structs[name] = struct.Struct(">" + code)
        return name

    def size(self, code: str) -> int:
        """Return how many bytes the struct `code` has."""
        return struct.calcsize(">" + code)

    def program(self, title: str, namespace: Mapping[str, Any]) -> "Program":
        """Compile the finished functions; the one called `run` is the program's."""
        lines: list[str] = []
        spots: list[Spot] = []
        for function in self.finished:
            lines += function.header, *function.lines
            spots += Spot((), ()), *function.spots
        text = "\n".join(lines) + "\n"
        bound = dict(namespace)
        for name, packed in self.structs.items():
            bound[name] = getattr(packed, name.rpartition("_")[0])
        file_name = f"<tidegate.wire {title} {id(self):x}>"
        exec(compile(text, file_name, "exec"), bound)  # our own text, made from our own table
        return Program(title=title, function=bound["run"], file_name=file_name, spots=tuple(spots), text=text)


def repeated_structs(fields: tuple[Field, ...]) -> set[str]:
    """Return the structures that occur more than once, by their `repr`: they become functions, which compile once."""
    seen: set[str] = set()
    repeated: set[str] = set()
    for inner in _structs(fields):
        key = repr(inner)
        (repeated if key in seen else seen).add(key)
    return repeated


def _structs(fields: tuple[Field, ...]) -> Iterator[tuple[Field, ...]]:
    for inner in fields:
        if inner.type == "struct":
            yield inner.fields
            yield from _structs(inner.fields)
