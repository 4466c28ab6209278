"""Writes readers and writers for the commonest shape of the messages on the hot path, as if by hand.

A Produce or Fetch mostly has one topic with one partition, no transaction, no errors and no tagged fields. Where that
may be taken for granted almost every field lies at a known distance, and one `struct` call reads or packs what would
take twenty steps. Whatever has another shape, or fails in any way, is left to the generic code, which handles it or
tells what is wrong: so both take and give the same dicts.
"""

from collections.abc import Mapping
from dataclasses import replace

from tidegate.wire import primitives
from tidegate.wire.codec_types import MALFORMED, UNWRITABLE
from tidegate.wire.definitions import REQUIRED, Field, Layout
from tidegate.wire.program import Program
from tidegate.wire.source import FIXED_CODES, Source
from tidegate.wire.writer_source import JOINED_RECORDS_BYTES

__all__ = ["NOTHING", "NULL", "SHAPES", "with_common_shape"]

NULL, EMPTY, NOTHING = "null", "empty", "null or empty"

SHAPES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("Produce", "request"): {"transactional_id": NULL},
    ("Produce", "response"): {"record_errors": EMPTY, "error_message": NULL},
    ("Fetch", "request"): {"forgotten_topics_data": EMPTY, "rack_id": EMPTY},
    ("Fetch", "response"): {"aborted_transactions": NOTHING},
}
"""What is taken for granted of fields by name; every other array is taken to have one element."""

LONGEST_SHORT_STRING = 126  # its compact length is one byte
NAMESPACE = {
    "BYTES": (bytes, bytearray, memoryview),
    "JOINED": JOINED_RECORDS_BYTES,
    "MALFORMED": MALFORMED,
    "UNWRITABLE": UNWRITABLE,
    "long_size": primitives.long_size,
    "uuid_bytes": primitives.uuid_bytes,
    "uuid_text": primitives.uuid_text,
    "varint": primitives.varint,
}


def with_common_shape(program: Program, layout: Layout) -> Program:
    """Return `program` with the code for the commonest shape before it: a request's reader, a response's writer."""
    if (layout.name, layout.direction) not in SHAPES:
        return program
    source = _Reader(layout) if layout.direction == "request" else _Writer(layout)
    quick = source.compile(program)
    return replace(program, function=quick.function)


class _Shape:
    """What reader and writer share: the layout, what is taken for granted, and the fields of the present group."""

    def __init__(self, layout: Layout) -> None:
        self.out = Source()
        self.layout = layout
        self.flexible = layout.flexible
        self.extra = 1 if layout.flexible else 0
        self.expected = SHAPES[layout.name, layout.direction]
        self.group: list[tuple[str, str]] = []

    def length_code(self, field: Field) -> str:
        """Return the `struct` type of a field's length."""
        return "B" if self.flexible else "h" if field.type == "string" and not field.array else "i"


class _Reader(_Shape):
    """Writes the reader: `conditions` are what must hold of the group read next, else the generic reader does it."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.conditions: list[str] = []

    def compile(self, program: Program) -> Program:
        """Return the reader."""
        out = self.out
        with out.function("def run(buf, start):"):
            with out.indented("try:"):
                out.line("at = start")
                result = self.struct(self.layout.fields)
                self.flush()
                out.line(f"return {result}")
            out.line("except MALFORMED: return generic(buf, start)")
        return out.program(f"{self.layout} of the common shape", {**NAMESPACE, "generic": program.generic})

    def struct(self, fields: tuple[Field, ...]) -> str:
        """Read a structure; return the expression of its dict, to be used when all has been read."""
        values = []
        for field in fields:
            value = repr(field.default) if field.tag is not None else self.field(field)
            values.append(f"{field.name!r}: {value}")
        if self.flexible:
            self.expect("B", "0")
        return f"{{{', '.join(values)}}}"

    def field(self, field: Field) -> str:
        """Read a field; return the expression of its value."""
        expected = self.expected.get(field.name)
        if expected is not None:
            null = expected == NULL
            self.expect(self.length_code(field), str(self.extra - null))
            return "None" if null else "[]" if field.array else "''"
        if field.array:
            self.expect(self.length_code(field), str(1 + self.extra))
            return f"[{self.struct(field.fields)}]"
        if field.type == "string":
            return self.string(field)
        if field.type == "records":
            return self.records()
        name = self.fixed(FIXED_CODES[field.type])
        return f"uuid_text({name})" if field.type == "uuid" else name

    def fixed(self, code: str) -> str:
        """Put a fixed-width value into the group; return its name."""
        name = self.out.name("v")
        self.group.append((code, name))
        return name

    def expect(self, code: str, value: str) -> None:
        """Put a value into the group that must be `value`."""
        self.conditions.append(f"{self.fixed(code)} != {value}")

    def flush(self) -> None:
        """Read the group, and leave the message to the generic reader unless all conditions hold."""
        if not self.group:
            return
        codes = "".join(code for code, _ in self.group)
        names = ", ".join(name for _, name in self.group)
        self.out.line(f"{names}, = {self.out.struct_method(codes, 'unpack_from')}(buf, at)")
        if self.conditions:
            self.out.line(f"if {' or '.join(self.conditions)}: return generic(buf, start)")
        self.out.line(f"at += {self.out.size(codes)}")
        self.group.clear()
        self.conditions.clear()

    def string(self, field: Field) -> str:
        """Read a string. One that is cut off leaves nothing for the group after it, which then fails."""
        size, value = self.fixed(self.length_code(field)), self.out.name("s")
        self.conditions.append(f"not {self.extra} <= {size} <= {LONGEST_SHORT_STRING}")
        self.flush()
        self.out.line(f"stop = at + {size} - {self.extra}")
        self.out.line(f"{value} = str(buf[at:stop], 'utf-8', 'replace')")
        self.out.line("at = stop")
        return value

    def records(self) -> str:
        """Read records, as a slice."""
        size, value = self.fixed("B" if self.flexible else "i"), self.out.name("s")
        self.flush()
        if self.flexible:
            self.out.line(f"if {size} > 127: {size}, at = varint(buf, at - 1)")
        self.out.line(f"stop = at + {size} - {self.extra}")
        self.out.line("if not at <= stop <= len(buf): return generic(buf, start)")
        self.out.line(f"{value} = buf[at:stop]")
        self.out.line("at = stop")
        return value


class _Writer(_Shape):
    """Writes the writer. All that can fail comes first, so that the generic writer finds nothing written yet.

    pieces: the lines that append, in order. conditions: what sends the message to the generic writer.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.pieces: list[str] = []

    def compile(self, program: Program) -> Program:
        """Return the writer."""
        out = self.out
        with out.function("def run(m, out, buffers):"):
            with out.indented("try:"):
                self.struct("m", self.layout.fields)
                self.flush()
            out.line("except UNWRITABLE: return generic(m, out, buffers)")
            for piece in self.pieces:
                out.line(piece)
            out.line("return throttle_at")
        return out.program(f"{self.layout} of the common shape", {**NAMESPACE, "generic": program.generic})

    def struct(self, message: str, fields: tuple[Field, ...]) -> None:
        """Write a structure that has no tagged field."""
        absent = ["_unknown_tags", *(field.name for field in fields if field.tag is not None)]
        if self.flexible:
            self.refuse(" or ".join(f"{name!r} in {message}" for name in absent))
        for field in fields:
            if field.tag is None:
                value = f"{message}[{field.name!r}]"
                if field.default is not REQUIRED:
                    value = f"{message}.get({field.name!r}, {field.default!r})"
                self.field(field, value)
        if self.flexible:
            self.group.append(("x", ""))

    def refuse(self, condition: str) -> None:
        """Leave the message to the generic writer when `condition` holds."""
        self.out.line(f"if {condition}: return generic(m, out, buffers)")

    def field(self, field: Field, value: str) -> None:
        """Write a field."""
        if field.name in self.expected:
            self.nothing(field, value)
        elif field.array:
            items = self.out.name("a")
            self.out.line(f"{items} = {value}")
            self.refuse(f"len({items}) != 1")
            self.group.append((self.length_code(field), str(1 + self.extra)))
            item = self.out.name("m")
            self.out.line(f"{item} = {items}[0]")
            self.struct(item, field.fields)
        elif field.type == "string":
            self.string(field, value)
        elif field.type == "records":
            self.records(value)
        else:
            if field.name == "throttle_time_ms":
                before = self.out.size("".join(code for code, _ in self.group))
                self.pieces.append(f"throttle_at = len(out) + {before}")
            packed = f"uuid_bytes({value})" if field.type == "uuid" else value
            self.group.append((FIXED_CODES[field.type], packed))

    def nothing(self, field: Field, value: str) -> None:
        """Write the length of a field that is null or empty."""
        name, expected = self.out.name("e"), self.expected[field.name]
        self.out.line(f"{name} = {value}")
        self.refuse(f"{name} is not None" if expected == NULL else name)
        null, empty = str(self.extra - 1), str(self.extra)
        mark = {NULL: null, EMPTY: empty, NOTHING: f"{null} if {name} is None else {empty}"}[expected]
        self.group.append((self.length_code(field), mark))

    def flush(self) -> None:
        """Pack the group; it is appended later."""
        if not self.group:
            return
        codes, name = "".join(code for code, _ in self.group), self.out.name("p")
        if set(codes) == {"x"}:
            self.pieces.append(f"out += {bytes(len(codes))!r}")
            self.group.clear()
            return
        pack = self.out.struct_method(codes, "pack")
        self.out.line(f"{name} = {pack}({', '.join(text for code, text in self.group if code != 'x')})")
        self.pieces.append(f"out += {name}")
        self.group.clear()

    def string(self, field: Field, value: str) -> None:
        """Write a string."""
        name = self.out.name("s")
        self.out.line(f"{name} = {value}.encode()")
        self.refuse(f"len({name}) > {LONGEST_SHORT_STRING}")
        self.group.append((self.length_code(field), f"len({name}) + {self.extra}"))
        self.flush()
        self.pieces.append(f"out += {name}")

    def records(self, value: str) -> None:
        """Write records: small ones with the rest, large ones as a buffer of their own."""
        name = self.out.name("r")
        self.out.line(f"{name} = {value}")
        self.refuse(f"{name} is None")
        if self.flexible:
            self.flush()
            self.out.line(f"size = long_size(len({name}), 'i')")
            self.pieces.append("out += size")
        else:
            self.group.append(("i", f"len({name})"))
            self.flush()
        self.pieces += (
            f"if len({name}) <= JOINED and isinstance({name}, BYTES): out += {name}",
            f"else: out = bytearray(); buffers += [{name}, out]",
        )
