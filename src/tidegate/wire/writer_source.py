"""Writes the source of a writer: straight-line Python that turns a dict into the bytes of one message.

Runs of fixed-width fields, the length after them and the empty tag section are packed in one `struct` call. Large
records are put into the list of buffers as they are; everything else goes into the bytearray before or after them.
"""

from typing import Any

from tidegate.wire import primitives
from tidegate.wire.definitions import REQUIRED, Field, Layout
from tidegate.wire.source import FIXED_CODES, Program, Source

__all__ = ["JOINED_RECORDS_BYTES", "compile_writer"]

JOINED_RECORDS_BYTES = 1024
"""Bytes-like records up to this size are copied: cheaper than one more buffer to send."""

NAMESPACE = {
    "BYTES": (bytes, bytearray, memoryview),
    "JOINED": JOINED_RECORDS_BYTES,
    "int_packer": primitives.int_packer,
    "tag_section": primitives.tag_section,
    "uuid_bytes": primitives.uuid_bytes,
    "uvarint": primitives.uvarint,
}
THROTTLE = "throttle_time_ms"


def compile_writer(layout: Layout) -> Program:
    """Return the writer of a message: `run(message, out, buffers) -> offset of throttle_time_ms`, or -1.

    `out` is the last of `buffers` and is appended to; more buffers follow where records are passed through.
    """
    writer = _WriterSource(layout)
    if not writer.has_throttle:
        writer.out.line("throttle_at = -1")
    writer.struct("m", layout.fields)
    writer.flush()
    writer.out.line("return throttle_at")
    return writer.out.program(str(layout), "def run(m, out, buffers):", {**NAMESPACE, **writer.defaults})


class _WriterSource:
    """The state of writing one writer: the source so far and the fixed-width values not yet packed."""

    def __init__(self, layout: Layout) -> None:
        self.out = Source()
        self.flexible = layout.flexible
        self.pending: list[tuple[str, str]] = []
        self.defaults: dict[str, Any] = {}
        self.has_throttle = layout.direction == "response" and THROTTLE in [
            field.name for field in layout.fields
        ]
        self.throttle_after: str | None = None

    def struct(self, message: str, fields: tuple[Field, ...]) -> None:
        """Write a structure. Tagged values are made first: whether there are any decides how the rest is packed."""
        tagged = sorted(
            (field for field in fields if field.tag is not None), key=lambda field: field.tag or 0
        )
        tags = self.tagged(message, tagged) if tagged else None
        for field in fields:
            if field.tag is None:
                self.field(message, field)
        if self.flexible:
            self.tag_section(message, tags)

    def field(self, message: str, field: Field) -> None:
        """Write one field that has no tag."""
        outer = self.out.path
        self.out.path = (*outer, (field.name, None))
        value = f"{message}[{field.name!r}]"
        if field.default is not REQUIRED:
            value = f"{message}.get({field.name!r}, {self.default(field)})"
        if field.name == THROTTLE and not outer and self.has_throttle:
            self.throttle_after = "".join(code for code, _ in self.pending)
        self.array(field, value) if field.array else self.value(field, value)
        self.out.path = outer

    def value(self, field: Field, value: str) -> None:
        """Write a value that is no array."""
        if field.type == "uuid":
            self.pending.append(("16s", f"uuid_bytes({value})"))
        elif field.type in FIXED_CODES:
            self.pending.append((FIXED_CODES[field.type], value))
        elif field.type == "struct":
            self.nested(field, value)
        else:
            self.sized(field, value)

    def default(self, field: Field) -> str:
        """Return the expression of a field's default; structures and arrays are made once."""
        if not isinstance(field.default, dict | list):
            return repr(field.default)
        name = f"default_{field.name}"
        self.defaults[name] = field.default
        return name

    def flush(self, *, more: str = "", expression: str = "") -> None:
        """Pack the values put off so far, and one more without keeping it, in one call."""
        values = [*self.pending, *([(more, expression)] if more else [])]
        if not values:
            return
        if self.throttle_after is not None:
            width = self.size(self.throttle_after)
            self.out.line(f"throttle_at = len(out) + {width}")
        self.throttle_after = None
        codes = "".join(code for code, _ in values)
        self.pending.clear()
        if codes in ("x", "B"):
            self.out.line(f"out.append({values[0][1]})")
            return
        pack = self.out.struct_method(codes, "pack")
        self.out.line(f"out += {pack}({', '.join(text for code, text in values if code != 'x')})")

    def size(self, codes: str) -> int:
        """Return how many bytes a struct of these codes packs."""
        return self.out.structs[self.out.struct_method(codes, "pack")].size

    def length(self, code: str, size: str) -> None:
        """Write a length, with the values put off so far."""
        if not self.flexible:
            self.flush(more=code, expression=size)
            return
        out, before, throttle_after = self.out, list(self.pending), self.throttle_after
        out.line(f"if {size} < 127:")
        out.depth += 1
        self.flush(more="B", expression=f"{size} + 1")
        out.depth -= 1
        out.line("else:")
        out.depth += 1
        self.pending, self.throttle_after = before, throttle_after
        self.flush()
        out.line(f"out += uvarint({size} + 1)")
        out.depth -= 1

    def sized(self, field: Field, value: str) -> None:
        """Write a string, bytes or records: a length and that many bytes."""
        out, text, size = self.out, self.out.name("s"), self.out.name("n")
        out.line(f"{text} = {value}")
        if field.nullable:
            out.line(f"if {text} is None: {size} = -1; {text} = b''")
            out.line("else:")
            out.depth += 1
        if field.type == "string":
            out.line(f"{text} = {text}.encode()")
        out.line(f"{size} = len({text})")
        if field.type == "string" and self.flexible:
            out.line(
                f"if {size} > {primitives.MAX_STRING_BYTES}: raise ValueError('a string has at most"
                f" {primitives.MAX_STRING_BYTES} bytes')"
            )
        if field.nullable:
            out.depth -= 1
        self.length("h" if field.type == "string" else "i", size)
        if field.type == "records":
            out.line(f"if {size} <= JOINED and isinstance({text}, BYTES): out += {text}")
            out.line(f"else: out = bytearray(); buffers += [{text}, out]")
        else:
            out.line(f"out += {text}")

    def nested(self, field: Field, value: str) -> None:
        """Write a structure inside a structure; a nullable one has a byte before it."""
        name = self.out.name("m")
        if not field.nullable:
            self.out.line(f"{name} = {value}")
            self.struct(name, field.fields)
            return
        self.flush()
        self.out.line(f"{name} = {value}")
        self.out.line(f"if {name} is None: out.append(255)")
        self.out.line("else:")
        self.out.depth += 1
        self.pending.append(("b", "1"))
        self.struct(name, field.fields)
        self.flush()
        self.out.depth -= 1

    def array(self, field: Field, value: str) -> None:
        """Write an array: how many elements, then each."""
        out, items, count = self.out, self.out.name("a"), self.out.name("n")
        out.line(f"{items} = {value}")
        if field.nullable:
            out.line(f"if {items} is None: {count} = -1; {items} = ()")
            out.line(f"else: {count} = len({items})")
        else:
            out.line(f"{count} = len({items})")
        self.length("i", count)
        code = FIXED_CODES.get(field.type, "")
        if code and field.type != "uuid":
            out.line(f"if {count} > 0: out += int_packer({code!r}, {count})(*{items})")
            return
        self.elements(field, items)

    def elements(self, field: Field, items: str) -> None:
        """Write each element of an array."""
        out, item, index = self.out, self.out.name("m"), self.out.name("i")
        outer = out.path
        out.path = (*outer[:-1], (field.name, index))
        out.line(f"for {index}, {item} in enumerate({items}):")
        out.depth += 1
        if field.type == "struct":
            self.struct(item, field.fields)
        else:
            self.value(field.element(), item)
        self.flush()
        out.depth -= 1
        out.path = outer

    def tagged(self, message: str, tagged: list[Field]) -> str:
        """Make the values of tagged fields that differ from their defaults; return the name of tag to bytes."""
        self.flush()
        out, tags = self.out, self.out.name("t")
        out.line(f"{tags} = None")
        outer_path = out.path
        for field in tagged:
            out.path = (*outer_path, (field.name, None))
            value, kept = out.name("v"), out.name("o")
            out.line(f"{value} = {message}.get({field.name!r}, {self.default(field)})")
            out.line(f"if {value} != {self.default(field)}:")
            out.depth += 1
            out.line(f"{kept} = out; out = bytearray()")
            self.array(field, value) if field.array else self.value(field, value)
            self.flush()
            out.line(f"if {tags} is None: {tags} = {{}}")
            out.line(f"{tags}[{field.tag}] = out; out = {kept}")
            out.depth -= 1
        out.path = outer_path
        return tags

    def tag_section(self, message: str, tags: str | None) -> None:
        """Write the tagged fields; mostly there are none, and their count of 0 is packed with what came before."""
        out, before, throttle_after = self.out, list(self.pending), self.throttle_after
        has_tags = f"'_unknown_tags' in {message}" + (f" or {tags}" if tags else "")
        out.line(f"if {has_tags}:")
        out.depth += 1
        self.flush()
        out.line(f"out += tag_section({tags or 'None'} or {{}}, {message}.get('_unknown_tags'))")
        out.depth -= 1
        out.line("else:")
        out.depth += 1
        self.pending, self.throttle_after = before, throttle_after
        self.flush(more="x", expression="0")
        out.depth -= 1
