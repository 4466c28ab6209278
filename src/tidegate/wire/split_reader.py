"""Readers of requests that begin like an earlier one: the repeated part is looked up, the rest is read.

`broker.known_requests` has the idea. The first part, as bytes, is a key; one `struct` call reads the rest. Found are
requests with one topic and one partition, no transaction, no tagged fields and nothing left to forget.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tidegate.wire.codec_types import MALFORMED, Buffer
from tidegate.wire.definitions import FIXED_CODES, Field, Layout, layout
from tidegate.wire.primitives import varint
from tidegate.wire.program import Source

__all__ = ["SplitReader", "split_reader"]

_ABSENT: Mapping[str, int] = {"transactional_id": -1, "forgotten_topics_data": 0, "rack_id": 0}
"""Lengths of arrays and strings that must be null (-1) or empty (0); every other array must have one element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReader:
    """The reader of one API's requests in one version.

    find: `(buffer, offset of the body, kept) -> (kept value, *values)`: the entry of `kept` whose key is the beginning
        of the body, and the requested values after it, in order; None if there is no such entry. Records are a slice.
    prefix: `(buffer, offset of the body) -> bytes`: the key of a request that the ordinary reader could read; empty
        if its first part has another shape, or if the topic's name is too long for this.
    """

    find: Callable[[memoryview, int, Mapping[bytes, Any]], Any]
    prefix: Callable[[Buffer, int], bytes]


@cache
def split_reader(
    api_key: int, api_version: int, last: str, values: tuple[str, ...], *, after: str | None = None
) -> SplitReader:
    """Return the reader that looks up the part up to the field `last`, and reads `values` from the rest.

    A value that the version does not have is -1. after: the field after which the part begins; None: the whole body.
    """
    message = layout(api_key, api_version, "request")
    return _SplitReaderSource(message, _fields_after(message, after), last, values).compile()


def _fields_after(message: Layout, name: str | None) -> tuple[Field, ...]:
    at = [field.name for field in message.fields].index(name) + 1 if name is not None else 0
    return message.fields[at:]


class _SplitReaderSource:
    """The state of writing one split reader: the source so far, and what is not yet read or checked.

    past: whether `last` has been passed: fields up to it are looked up, and those after it are read.
    length_at: offset of the low byte of the topic name's length.
    shape: conditions under which the bytes of the first part are a key.
    """

    def __init__(
        self, message: Layout, fields: tuple[Field, ...], last: str, values: tuple[str, ...]
    ) -> None:
        self.layout = message
        self.fields = fields
        self.last = last
        self.wanted = values
        self.extra = 1 if message.flexible else 0  # lengths are one more than they say
        self.out = Source()
        self.past = False
        self.prefix_bytes = 0
        self.length_at = -1
        self.group: list[tuple[str, str]] = []
        self.conditions: list[str] = []
        self.shape: list[str] = []
        self.found: dict[str, str] = {}

    def compile(self) -> SplitReader:
        """Return the reader."""
        out = self.out
        with out.function("run", "buf, at, kept"):
            with out.indented("try:"):
                self.struct(self.fields)
                self.flush()
                out.line(f"return known, {', '.join(self.found.get(name, '-1') for name in self.wanted)}")
            out.line("except MALFORMED: return None")
        with out.function("prefix", "buf, at"):
            # The key has one byte of the name's length. Longer names are left to the ordinary reader.
            if self.length_at >= 0:
                long_name = (
                    f"buf[at + {self.length_at}] > 127" if self.extra else f"buf[at + {self.length_at - 1}]"
                )
                out.line(f"if {long_name}: return b''")
            out.line(f"if {' or '.join(self.shape)}: return b''")
            out.line(f"return bytes(buf[at:{self.prefix_end()}])")
        program = out.program(f"{self.layout} split", {"MALFORMED": MALFORMED, "varint": varint})
        return SplitReader(find=program.function, prefix=program.function.__globals__["prefix"])

    def prefix_end(self) -> str:
        """Return the expression of the end of the part that is looked up."""
        name = f" + buf[at + {self.length_at}]" if self.length_at >= 0 else ""
        return f"at + {self.prefix_bytes}{name}"

    def struct(self, fields: tuple[Field, ...]) -> None:
        """Read a structure."""
        for field in fields:
            if field.tag is None:
                self.field(field)
                if field.name == self.last:
                    self.past = True
                    self.look_up()
        if self.layout.flexible:
            self.expect("B", 0)

    def look_up(self) -> None:
        """Look up the part that has been passed."""
        self.out.line(f"stop = {self.prefix_end()}")
        self.out.line("known = kept.get(bytes(buf[at:stop]))")
        self.out.line("if known is None: return None")
        self.out.line("at = stop")

    def field(self, field: Field) -> None:
        """Read a field."""
        if field.name in _ABSENT:
            self.expect(self.length_code(field), _ABSENT[field.name] + self.extra)
        elif field.array:
            self.expect(self.length_code(field), 1 + self.extra)
            self.struct(field.fields)
        elif field.type == "string":
            self.name_length(field)
        elif field.type == "records":
            self.records(field)
        else:
            self.found[field.name] = self.fixed(FIXED_CODES[field.type])

    def length_code(self, field: Field) -> str:
        """Return the `struct` type of a field's length."""
        return "B" if self.layout.flexible else "h" if field.type == "string" and not field.array else "i"

    def fixed(self, code: str) -> str:
        """Read a fixed-width value and return its name; in the first part, count its bytes and return an empty name."""
        if not self.past:
            self.prefix_bytes += self.out.size(code)
            return ""
        name = self.out.name("v")
        self.group.append((code, name))
        return name

    def expect(self, code: str, value: int) -> None:
        """Read a value that must be `value`; in the first part, check it only when the key is made."""
        if self.past:
            self.conditions.append(f"{self.fixed(code)} != {value}")
        else:
            unpack = self.out.struct_method(code, "unpack_from")
            self.shape.append(f"{unpack}(buf, {self.prefix_end()})[0] != {value}")
            self.fixed(code)

    def name_length(self, field: Field) -> None:
        """Count the length field of the topic's name: the name is the only part of the key of unknown length."""
        assert not self.past
        assert self.length_at < 0
        size = self.out.size(self.length_code(field))
        self.length_at = self.prefix_bytes + size - 1
        self.prefix_bytes += size - self.extra

    def records(self, field: Field) -> None:
        """Read records, as a slice."""
        size = self.fixed("B" if self.layout.flexible else "i")
        self.flush()
        if self.layout.flexible:
            self.out.line(f"if {size} > 127: {size}, at = varint(buf, at - 1)")
        self.out.line(f"stop = at + {size} - {self.extra}")
        self.out.line("if not at <= stop <= len(buf): return None")
        self.found[field.name] = "records"
        self.out.line("records = buf[at:stop]")
        self.out.line("at = stop")

    def flush(self) -> None:
        """Read the values taken since the last time with one call."""
        if not self.group:
            return
        codes = "".join(code for code, _ in self.group)
        names = ", ".join(name for _, name in self.group)
        read = "buf[at]" if codes == "B" else f"{self.out.struct_method(codes, 'unpack_from')}(buf, at)"
        self.out.line(f"{names} = {read}" if len(codes) > 1 or codes == "B" else f"{names}, = {read}")
        if self.conditions:
            self.out.line(f"if {' or '.join(self.conditions)}: return None")
        self.out.line(f"at += {self.out.size(codes)}")
        self.group.clear()
        self.conditions.clear()
