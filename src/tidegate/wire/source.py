"""Source text of a compiled reader or writer, with the message field that each line is about.

The readers and writers are straight-line code without any checks of their own for what Python checks anyway: reading
past the end raises `struct.error` or `IndexError`, a missing key `KeyError`. When that happens the line that failed
tells the field, and the function's variables tell the offset and the array indexes. Nothing is spent on it before.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

__all__ = ["FIXED_CODES", "Program", "Source", "failed_at"]

FIXED_CODES = {
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

Path = tuple[tuple[str, str | None], ...]


@dataclass(slots=True)
class Source:
    """Lines of Python under construction. `path` is the field that lines written now are about."""

    lines: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    structs: dict[str, struct.Struct] = field(default_factory=dict)
    path: Path = ()
    depth: int = 1
    _names: int = 0

    def line(self, text: str, path: Path | None = None) -> None:
        """Add one line at the present indentation."""
        self.lines.append(" " * self.depth + text)
        self.paths.append(self.path if path is None else path)

    def name(self, stem: str) -> str:
        """Return a variable name not used before."""
        self._names += 1
        return f"{stem}{self._names}"

    def struct_method(self, code: str, method: str) -> str:
        """Return the name that holds `method` of the big-endian struct `code`."""
        name = f"{method}_{code.replace('?', 'o')}"
        self.structs[name] = struct.Struct(">" + code)
        return name

    def program(self, title: str, header: str, namespace: dict[str, Any]) -> "Program":
        """Compile the lines as the body of a function with this header."""
        text = "\n".join([header, *self.lines]) + "\n"
        bound = dict(namespace)
        for name, packed in self.structs.items():
            bound[name] = getattr(packed, name.rpartition("_")[0])
        code: CodeType = compile(text, f"<tidegate.wire {title}>", "exec")
        exec(code, bound)  # our own text, made from our own table
        return Program(title=title, function=bound["run"], paths=((), *self.paths), text=text)


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled function, the field of each of its lines, and its text for who wants to read it."""

    title: str
    function: Callable[..., Any]
    paths: tuple[Path, ...]
    text: str


def failed_at(program: Program, traceback: TracebackType | None) -> tuple[str, dict[str, Any]]:
    """Return (path of the field, variables) of the line of `program` that raised."""
    found: tuple[int, FrameType] | None = None
    while traceback is not None:
        if traceback.tb_frame.f_code is program.function.__code__:
            found = traceback.tb_lineno, traceback.tb_frame
        traceback = traceback.tb_next
    if found is None:
        return "", {}
    line_number, frame = found
    return _text(program.paths[line_number - 1], frame.f_locals), dict(frame.f_locals)


def _text(path: Path, variables: dict[str, Any]) -> str:
    """Return a path as text, array indexes filled in: `topics[2].partitions[0].records`."""
    return ".".join(f"{name}[{variables[index]}]" if index in variables else name for name, index in path)
