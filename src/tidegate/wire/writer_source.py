"""Source of a writer: straight-line Python that turns a dict into the bytes of one message.

Runs of fixed-width fields, the length after them and the empty tag section are packed in one `struct` call. Large
records are put into the list of buffers as they are; everything else goes into the bytearray before or after them.

A writer in slices is the same source with a `yield` after each element of an array, and a new buffer where the present
one has become large: a bytearray that grows may be moved, which is one long step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.wire import primitives, slices
from tidegate.wire.codec_types import EncodedElements
from tidegate.wire.definitions import FIXED_CODES, REQUIRED, Field, Layout
from tidegate.wire.program import Member, Program, Source, repeated_structs

__all__ = ["JOINED_RECORDS_BYTES", "SLICED_BUFFER_BYTES", "compile_writer"]

JOINED_RECORDS_BYTES = 1024
"""Bytes-like records up to this size are copied: cheaper than one more buffer to send."""

SLICED_BUFFER_BYTES = 64 * 1024
"""A writer in slices begins a new buffer after this many bytes."""

NAMESPACE = {
    "BYTES": (bytes, bytearray, memoryview),
    "EncodedElements": EncodedElements,
    "MAX_STRING": primitives.MAX_STRING_BYTES,
    "cut_text": primitives.cut_text,
    "JOINED": JOINED_RECORDS_BYTES,
    "SLICED": SLICED_BUFFER_BYTES,
    "int_packer": primitives.int_packer,
    "long_size": primitives.long_size,
    "NUMBERS": slices.NUMBERS_AT_ONCE,
    "pack_in_slices": slices.pack_in_slices,
    "tag_section": primitives.tag_section,
    "uuid_bytes": primitives.uuid_bytes,
}
THROTTLE = "throttle_time_ms"


def compile_writer(layout: Layout, *, in_slices: bool = False) -> Program:
    """Return the writer of a message: `run(message, out, buffers) -> offset of throttle_time_ms`, or -1.

    `out` is the last of `buffers` and is appended to; more buffers follow where records are passed through. In slices
    `run` is a generator that returns the offset.
    """
    writer = _WriterSource(layout, in_slices=in_slices)
    with writer.out.function("run", "m, out, buffers"):
        writer.out.line("throttle_at = -1")
        writer.struct_body("m", layout.fields)
        writer.out.line("return throttle_at")
    return writer.out.program(str(layout), {**NAMESPACE, **writer.defaults})


class _WriterSource:
    """The state of writing one writer: the source so far and the fixed-width values not yet packed.

    throttle_after: the codes pending before the throttle time, while it is pending itself.
    may_split: in slices, whether a new buffer may begin here: not before the throttle time, which must be in the first
    buffer, and not in a function that received `out` as a parameter.
    """

    def __init__(self, layout: Layout, *, in_slices: bool) -> None:
        self.out = Source(in_slices=in_slices)
        self.in_slices = in_slices
        self.flexible = layout.flexible
        self.pending: list[Member] = []
        self.defaults: dict[str, Any] = {}
        self.repeated = repeated_structs(layout.fields)
        self.functions: dict[str, str] = {}
        self.throttled = layout.fields if layout.direction == "response" else ()
        self.throttle_after: str | None = None
        self.may_split = in_slices and all(field.name != THROTTLE for field in self.throttled)

    @contextmanager
    def unsplit(self) -> Iterator[None]:
        """Write what goes into one buffer."""
        may_split, self.may_split = self.may_split, False
        yield
        self.may_split = may_split

    def slice_ends(self) -> None:
        """Add a `yield` here, in slices; before it, begin a new buffer if `may_split` and the present one is large."""
        if self.may_split:
            # The copy has no spare room: a buffer that has grown has up to an eighth of its size.
            self.out.line(
                "if len(out) > SLICED: buffers[-1] = bytearray(out); out = bytearray(); buffers.append(out)"
            )
        self.out.slice_ends()

    def struct(self, message: str, fields: tuple[Field, ...]) -> None:
        """Write a structure; a repeated one by its function."""
        key = repr(fields)
        if key not in self.repeated:
            self.struct_body(message, fields)
            return
        self.flush()
        if key not in self.functions:
            self.functions[key] = self.out.name("write_")
            # `out` is a parameter there: the caller would not see a new buffer, and would append to the old one.
            with self.out.function(self.functions[key], "m, out"), self.unsplit():
                self.struct_body("m", fields)
                self.flush()
        self.out.line(f"{'yield from ' * self.in_slices}{self.functions[key]}({message}, out)")

    def struct_body(self, message: str, fields: tuple[Field, ...]) -> None:
        """Write a structure in place. Tagged values are made first: whether there are any decides how it ends."""
        tagged = sorted(
            (field for field in fields if field.tag is not None), key=lambda field: field.tag or 0
        )
        tags = self.tagged(message, tagged) if tagged else ""
        for field in fields:
            if field.tag is None:
                with self.out.about(field.name):
                    self.field(
                        message, field, is_throttle=fields is self.throttled and field.name == THROTTLE
                    )
        if self.flexible:
            self.tag_section(message, tags)
        self.flush()

    def field(self, message: str, field: Field, *, is_throttle: bool) -> None:
        """Write one field that has no tag."""
        value = f"{message}[{field.name!r}]"
        if field.default is not REQUIRED:
            value = f"{message}.get({field.name!r}, {self.default(field)})"
        if is_throttle:
            self.throttle_after = "".join(member.code for member in self.pending)
            self.may_split = self.in_slices
        self.array(field, value) if field.array else self.value(field, value)

    def default(self, field: Field) -> str:
        """Return the expression of a field's default; structures and arrays are made once."""
        if not isinstance(field.default, dict | list):
            return repr(field.default)
        self.defaults[f"default_{field.name}"] = field.default
        return f"default_{field.name}"

    def value(self, field: Field, value: str) -> None:
        """Write a value that is no array."""
        if field.type == "uuid":
            self.pending.append(self.member("16s", f"uuid_bytes({value})"))
        elif field.type in FIXED_CODES:
            self.pending.append(self.member(FIXED_CODES[field.type], value))
        elif field.type == "struct":
            self.nested(field, value)
        else:
            self.sized(field, value)

    def member(self, code: str, value: str) -> Member:
        """Return a value to be packed, of the field that is being written."""
        return Member(code, value, self.out.path)

    def flush(self, *last: tuple[str, str]) -> None:
        """Pack the values put off so far, and `last` without putting it off, in one call."""
        values = [*self.pending, *(self.member(*one) for one in last)]
        if self.throttle_after is not None:
            self.out.line(f"throttle_at = len(out) + {self.out.size(self.throttle_after)}")
        self.throttle_after = None
        self.pending.clear()
        codes = "".join(member.code for member in values)
        if codes in ("x", "B"):
            self.out.line(f"out.append({values[0].value})")
        elif codes:
            pack = self.out.struct_method(codes, "pack")
            packed = [member for member in values if member.code != "x"]
            self.out.line(f"out += {pack}({', '.join(member.value for member in packed)})", *packed)

    def either(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Write both ways on; the values put off so far are packed in each."""
        pending, throttle_after = list(self.pending), self.throttle_after
        with self.out.indented(f"if {condition}:"):
            then()
        self.pending, self.throttle_after = pending, throttle_after
        with self.out.indented("else:"):
            otherwise()

    def length(self, code: str, size: str) -> None:
        """Write a length, with the values put off so far."""
        if not self.flexible:
            self.flush((code, size))
            return

        def long_form() -> None:
            self.flush()
            self.out.line(f"out += long_size({size}, {code!r})")

        self.either(f"{size} < 127", lambda: self.flush(("B", f"{size} + 1")), long_form)

    def sized(self, field: Field, value: str) -> None:
        """Write a string, bytes or records: a length and that many bytes. The text of an error is cut to fit."""
        out, text, size = self.out, self.out.name("s"), self.out.name("n")
        code = "h" if field.type == "string" else "i"
        out.line(f"{text} = {value}")

        def content() -> None:
            if field.type == "string":
                out.line(f"{text} = {text}.encode()")
            out.line(f"{size} = len({text})")
            if field.type == "string" and field.name.endswith("error_message"):
                out.line(f"if {size} > MAX_STRING: {text} = cut_text({text}); {size} = len({text})")
            self.length(code, size)
            if field.type == "records":
                out.line(f"if {size} <= JOINED and isinstance({text}, BYTES): out += {text}")
                out.line(f"else: out = bytearray(); buffers += [{text}, out]")
            elif field.type == "bytes" and self.may_split:
                out.line(f"if {size} > SLICED: out = bytearray(); buffers += [{text}, out]")
                out.line(f"else: out += {text}")
            else:
                out.line(f"out += {text}")

        if field.nullable:
            self.either(f"{text} is None", lambda: self.flush(self.null_mark(code)), content)
        else:
            content()

    def null_mark(self, code: str) -> tuple[str, str]:
        """Return the null length of a type."""
        return ("x", "0") if self.flexible else (code, "-1")

    def nested(self, field: Field, value: str) -> None:
        """Write a structure inside a structure; a nullable one has a byte before it."""
        name = self.out.name("m")
        self.out.line(f"{name} = {value}")
        if not field.nullable:
            self.struct(name, field.fields)
            return

        def present() -> None:
            self.pending.append(self.member("b", "1"))
            self.struct(name, field.fields)

        self.either(f"{name} is None", lambda: self.flush(("b", "-1")), present)

    def array(self, field: Field, value: str) -> None:
        """Write an array: how many elements, then each."""
        out, items, count = self.out, self.out.name("a"), self.out.name("n")
        out.line(f"{items} = {value}")

        def content() -> None:
            out.line(f"{count} = len({items})")
            self.length("i", count)
            self.elements(field, items, count)

        if field.nullable:
            self.either(f"{items} is None", lambda: self.flush(self.null_mark("i")), content)
        else:
            content()

    def elements(self, field: Field, items: str, count: str) -> None:
        """Write each element of an array."""
        out, code = self.out, FIXED_CODES.get(field.type, "")
        if code and field.type != "uuid":
            if self.in_slices:
                out.line(f"if {count} > NUMBERS: yield from pack_in_slices({code!r}, {items}, out)")
            at_once = "elif" if self.in_slices else "if"
            out.line(f"{at_once} {count}: out += int_packer({code!r}, {count})(*{items})")
            return
        item = out.name("m")
        if field.type == "struct":
            with out.indented(f"if type({items}) is EncodedElements:"):
                with out.indented(f"for {item} in {items}.chunks:"):
                    out.line(f"out += {item}")
                    self.slice_ends()
                out.line(f"{items} = ()")
        with out.about_element(f"{items}/{item}"), out.indented(f"for {item} in {items}:"):
            if field.type == "struct":
                self.struct(item, field.fields)
            else:
                self.value(field.element(), item)
            self.flush()
            self.slice_ends()

    def tagged(self, message: str, tagged: list[Field]) -> str:
        """Make the values of tagged fields that differ from their defaults; return the name of tag to bytes."""
        self.flush()
        out, tags = self.out, self.out.name("t")
        out.line(f"{tags} = None")
        for field in tagged:
            value, kept, default = out.name("v"), out.name("o"), self.default(field)
            given = f"{field.name!r} in {message} and ({value} := {message}[{field.name!r}]) != {default}"
            with out.about(field.name), out.indented(f"if {given}:"), self.unsplit():
                # A buffer of its own: the length of a tagged field stands before it.
                out.line(f"{kept} = out; out = bytearray()")
                self.array(field, value) if field.array else self.value(field, value)
                self.flush()
                out.line(f"if {tags} is None: {tags} = {{}}")
                out.line(f"{tags}[{field.tag}] = out; out = {kept}")
        return tags

    def tag_section(self, message: str, tags: str) -> None:
        """Write the tagged fields; mostly there are none, and their count of 0 is packed with what came before."""

        def present() -> None:
            self.flush()
            self.out.line(f"out += tag_section({tags or None}, {message}.get('_unknown_tags'))")

        condition = f"'_unknown_tags' in {message}" + (f" or {tags}" if tags else "")
        self.either(condition, present, lambda: self.flush(("x", "0")))
