"""Source of a reader: straight-line Python that turns the bytes of one message into a dict.

For each run of fixed-width fields one `struct` call reads all of them and the length that follows. Lengths and counts
are checked against what remains before anything is made of them; records are slices of the buffer, never copies.

In flexible versions a length on the wire is one more than it says, and 0 is null (KIP-482); else -1 is null. Kafka
takes every negative length as null, and so does this.

A reader in slices is the same source with a `yield` after each element of an array. It reads at most one element
between two yields, so that its caller can serve other requests in between. It costs a third more.
"""

from tidegate.wire import primitives, slices
from tidegate.wire.codec_types import PlainRows
from tidegate.wire.definitions import FIXED_CODES, Field, Layout, minimum_size
from tidegate.wire.program import Member, Program, Source, repeated_structs

__all__ = ["compile_reader"]

NAMESPACE = {
    "PlainRows": PlainRows,
    "COPIED": slices.COPIED_AT_ONCE_BYTES,
    "SENDABLE": primitives.SENDABLE_STRING_BYTES,
    "check_sendable": primitives.check_sendable,
    "NUMBERS": slices.NUMBERS_AT_ONCE,
    "crowded": primitives.crowded,
    "cut_off": primitives.cut_off,
    "int_unpacker": primitives.int_unpacker,
    "keep_tag": primitives.keep_tag,
    "misplaced": primitives.misplaced,
    "numbers_in_slices": slices.numbers_in_slices,
    "read_tags": primitives.read_tags,
    "string_size": primitives.string_size,
    "tag_count": primitives.tag_count,
    "tag_header": primitives.tag_header,
    "too_many": primitives.too_many,
    "uuid_text": primitives.uuid_text,
    "varint": primitives.varint,
}


def compile_reader(layout: Layout, *, in_slices: bool = False, rows: str = "") -> Program:
    """Return the reader of a message: `run(buf, at) -> dict`, where `buf` is a memoryview of bytes.

    It raises `MalformedError`, `struct.error` or `IndexError` on malformed bytes, never anything else. In slices `run`
    is a generator that returns the dict. rows: the array that is read as `PlainRows` where its elements are plain.
    """
    reader = _ReaderSource(layout, in_slices=in_slices, rows=rows)
    with reader.out.function("run", "buf, at"):
        if not reader.keeps_slices:
            reader.out.line("buf = bytes(buf)")
        reader.out.line("end = len(buf)")
        if reader.counts:
            reader.out.line(f"left = {primitives.MAX_REQUEST_ELEMENTS}")
        reader.out.line(f"return {reader.struct_body(layout.fields)}")
    return reader.out.program(str(layout), NAMESPACE)


def _has_records(fields: tuple[Field, ...]) -> bool:
    return any(field.type == "records" or _has_records(field.fields) for field in fields)


class _ReaderSource:
    """The state of writing one reader: the source so far and the fixed-width fields not yet read.

    keeps_slices: records are slices of the caller's buffer; a message without records is read from a copy as `bytes`,
    which makes texts in half the time, but not in slices: copying 100 MB is one long step.
    counts: array elements and tagged fields of requests are counted, so that few bytes cannot become a mountain of
    objects; the variable `left` holds how many more are allowed.
    """

    def __init__(self, layout: Layout, *, in_slices: bool, rows: str = "") -> None:
        self.out = Source(in_slices=in_slices)
        self.rows = rows
        self.flexible = layout.flexible
        self.extra = 1 if layout.flexible else 0
        self.in_slices = in_slices
        self.keeps_slices = in_slices or _has_records(layout.fields)
        self.counts = layout.direction == "request"
        self.left = ", left" * self.counts
        self.pending: list[Member] = []
        self.repeated = repeated_structs(layout.fields)
        self.functions: dict[str, str] = {}

    def struct(self, fields: tuple[Field, ...]) -> str:
        """Read a structure; return the variable that holds its dict. A repeated one is a call of its function."""
        key = repr(fields)
        if key not in self.repeated:
            return self.struct_body(fields)
        self.flush()
        if key not in self.functions:
            self.functions[key] = self.out.name("read_")
            with self.out.function(self.functions[key], f"buf, at, end{self.left}"):
                self.out.line(f"return {self.struct_body(fields)}, at{self.left}")
        result = self.out.name("d")
        call = f"{'yield from ' * self.in_slices}{self.functions[key]}(buf, at, end{self.left})"
        self.out.line(f"{result}, at{self.left} = {call}")
        return result

    def struct_body(self, fields: tuple[Field, ...]) -> str:
        """Read a structure in place; return the variable that holds its dict."""
        values: dict[str, str] = {}
        for field in fields:
            if field.tag is None:
                with self.out.about(field.name):
                    values[field.name] = self.array(field) if field.array else self.value(field)
            else:
                values[field.name] = repr(field.default)
        # The number of tagged fields is read together with the fields before it, in one `struct` call.
        tags = self.fixed("B") if self.flexible else None
        self.flush()
        result = self.out.name("d")
        self.out.line(f"{result} = {{{', '.join(f'{name!r}: {value}' for name, value in values.items())}}}")
        if tags:
            self.tags([field for field in fields if field.tag is not None], tags, result)
        return result

    def value(self, field: Field) -> str:
        """Read a field that is no array; return the expression of its value."""
        if field.type in FIXED_CODES:
            name = self.fixed(FIXED_CODES[field.type])
            return f"uuid_text({name})" if field.type == "uuid" else name
        if field.type == "struct":
            return self.nullable_struct(field) if field.nullable else self.struct(field.fields)
        return self.sized(field)

    def fixed(self, code: str) -> str:
        """Add a fixed-width value to those not yet read; return its name."""
        name = self.out.name("v")
        self.pending.append(Member(code, name, self.out.path))
        return name

    def flush(self) -> None:
        """Read the fixed-width values put off so far, in one call."""
        if not self.pending:
            return
        codes = "".join(member.code for member in self.pending)
        if codes == "B":
            self.out.line(f"{self.pending[0].value} = buf[at]", *self.pending)
        else:
            names = ", ".join(member.value for member in self.pending)
            self.out.line(
                f"{names}, = {self.out.struct_method(codes, 'unpack_from')}(buf, at)", *self.pending
            )
        self.out.line(f"at += {self.out.size(codes)}")
        self.pending.clear()

    def length(self, code: str, long_form: str) -> str:
        """Read a length as it is on the wire; return its name."""
        name = self.fixed("B" if self.flexible else code)
        self.flush()
        if self.flexible:
            # Almost all lengths take one byte. A longer one is read again from its first byte.
            self.out.line(f"if {name} > 127: {name}, at = {long_form}(buf, at - 1)")
        return name

    def sized(self, field: Field) -> str:
        """Read a string, bytes or records: a length and that many bytes."""
        out, is_string = self.out, field.type == "string"
        size = self.length("h" if is_string else "i", "string_size" if is_string else "varint")
        plain_size = f"{size} - {self.extra}" if self.extra else size
        value, stop = out.name("s"), out.name("stop")
        if not field.nullable:
            out.line(f"{stop} = at + {plain_size}")
            # `at <= stop` refuses a negative length.
            out.line(f"if not at <= {stop} <= end: raise cut_off({field.type!r}, {plain_size}, end - at)")
            self.read_value(field, value, stop)
            return value
        with out.indented(f"if {size} {'>' if is_string else '>='} {self.extra}:"):
            out.line(f"{stop} = at + {plain_size}")
            out.line(f"if {stop} > end: raise cut_off({field.type!r}, {plain_size}, end - at)")
            self.read_value(field, value, stop)
        if is_string:  # mostly it is empty or null
            out.line(f"elif {size} == {self.extra}: {value} = ''")
        out.line(f"else: {value} = None")
        return value

    def read_value(self, field: Field, value: str, stop: str) -> None:
        """Read the bytes up to `stop` as the value. `string_size` has checked long strings of flexible versions."""
        source = f"buf[at:{stop}]"
        if field.type == "string" and not self.flexible:
            self.out.line(f"if {stop} - at > SENDABLE: check_sendable({source})")
        if field.type == "string":
            source = (
                f"str({source}, 'utf-8', 'replace')"
                if self.keeps_slices
                else f"{source}.decode('utf-8', 'replace')"
            )
        elif field.type == "bytes" and self.in_slices:
            source = f"bytes({source}) if {stop} - at <= COPIED else {source}"
        elif field.type == "bytes" and self.keeps_slices:
            source = f"bytes({source})"
        self.out.line(f"{value} = {source}")
        self.out.line(f"at = {stop}")

    def nullable_struct(self, field: Field) -> str:
        """Read a structure that is there only when the byte before it is not negative."""
        mark, value = self.fixed("b"), self.out.name("s")
        self.flush()
        self.out.line(f"{value} = None")
        with self.out.indented(f"if {mark} >= 0:"):
            self.out.line(f"{value} = {self.struct(field.fields)}")
        return value

    def array(self, field: Field) -> str:
        """Read an array; what its elements need at least is checked before the first is read."""
        out = self.out
        count, items = self.length("i", "varint"), out.name("a")
        least = minimum_size(field.element(), flexible=self.flexible)
        room = "end - at" if least == 1 else f"(end - at) // {least}"
        error = f"raise too_many({field.type!r}, {count} - {self.extra}, {least}, end - at)"
        if not field.nullable:
            out.line(f"if not {self.extra} <= {count} <= {room} + {self.extra}: {error}")
            self.elements(field, count, items)
            return items
        with out.indented(f"if {count} >= {self.extra}:"):
            out.line(f"if {count} > {room} + {self.extra}: {error}")
            self.elements(field, count, items)
        out.line(f"else: {items} = None")
        return items

    def elements(self, field: Field, count: str, items: str) -> None:
        """Read the elements of an array into a list."""
        out = self.out
        self.count_elements(count)
        plain_count = f"{count} - {self.extra}" if self.extra else count
        code = FIXED_CODES.get(field.type, "")
        if code and field.type != "uuid":
            if self.in_slices:
                sliced = f"yield from numbers_in_slices({code!r}, {plain_count}, buf, at)"
                out.line(f"if {plain_count} > NUMBERS: {items} = {sliced}")
            at_once = "else: " * self.in_slices
            out.line(f"{at_once}{items} = list(int_unpacker({code!r}, {plain_count})(buf, at))")
            out.line(f"at += ({plain_count}) * {out.size(code)}")
            return
        index = out.name("i")
        if field.name == self.rows:
            out.line(f"{items} = {self.plain_rows(field, plain_count)}")
            # The count is set to none: the loop over the elements, written below for both cases, then does nothing.
            out.line(f"if {items} is not None: at += len({items}.data); {count} = {self.extra}")
            out.line(f"else: {items} = []")
        else:
            out.line(f"{items} = []")
        with out.about_element(index), out.indented(f"for {index} in range({plain_count}):"):
            value = self.value(field.element())
            self.flush()
            out.line(f"{items}.append({value})")
            self.out.slice_ends()

    def plain_rows(self, field: Field, count: str) -> str:
        """Return the expression of an array's rows, None where a string in it is not empty.

        A length that is zero or null has two equal bytes, 0 or 255; in flexible versions it is one byte, 0 or 1, and
        the number of tagged fields, which must be none, is another.
        """
        out, data = self.out, self.out.name("data")
        size = minimum_size(field.element(), flexible=self.flexible)
        out.line(f"{data} = buf[at:at + ({count}) * {size}]")
        at, conditions = 0, list[str]()
        for part in field.fields:
            if part.type in FIXED_CODES:
                at += out.size(FIXED_CODES[part.type])
                continue
            assert part.type == "string", f"{part.name} of plain rows must be a number or a string"
            lengths = f"{data}[{at}::{size}]"
            if self.flexible:
                conditions.append(f"not {lengths}.strip(b'\\0\\1')")
            else:
                conditions.append(
                    f"not {lengths}.strip(b'\\0\\xff') and {lengths} == {data}[{at + 1}::{size}]"
                )
            at += 1 if self.flexible else 2
        if self.flexible:
            conditions.append(f"not {data}[{at}::{size}].strip(b'\\0')")
        return f"PlainRows({count}, {data}) if {' and '.join(conditions)} else None"

    def count_elements(self, count: str) -> None:
        """Subtract elements, or tagged fields, from the number that a request may still have."""
        if self.counts:
            self.out.line(f"left -= {count}")
            self.out.line("if left < 0: raise crowded()")

    def tags(self, tagged: list[Field], count: str, result: str) -> None:
        """Read the tagged fields into the structure's dict. Mostly there are none: their count is 0."""
        out = self.out
        with out.indented(f"if {count}:"):
            out.line(f"{count}, at = tag_count(buf, at - 1)")
            self.count_elements(count)
            if tagged:
                self.known_tags(tagged, count, result)
            else:
                out.line(f"at = read_tags(buf, at, end, {result}, {count})")

    def known_tags(self, tagged: list[Field], count: str, result: str) -> None:
        """Read tagged fields, some of which have a name."""
        out = self.out
        tag, stop = out.name("tag"), out.name("stop")
        with out.indented(f"for _ in range({count}):"):
            out.line(f"{tag}, {stop}, at = tag_header(buf, at, end)")
            for place, field in enumerate(tagged):
                with (
                    out.indented(f"{'el' if place else ''}if {tag} == {field.tag}:"),
                    out.about(field.name),
                ):
                    value = self.array(field) if field.array else self.value(field)
                    self.flush()
                    out.line(f"{result}[{field.name!r}] = {value}")
            out.line(f"else: at = keep_tag(buf, at, {stop}, {tag}, {result})")
            out.line(f"if at != {stop}: raise misplaced({tag}, at, {stop})")
            self.out.slice_ends()
