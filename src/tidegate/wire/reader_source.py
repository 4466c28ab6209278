"""Writes the source of a reader: straight-line Python that turns the bytes of one message into a dict.

For each run of fixed-width fields one `struct` call reads all of them and the length that follows. Lengths and counts
are checked against what remains before anything is made of them; records are slices of the buffer, never copies.
"""

from tidegate.wire import primitives
from tidegate.wire.definitions import Field, Layout, minimum_size
from tidegate.wire.errors import MalformedError
from tidegate.wire.source import FIXED_CODES, Program, Source

__all__ = ["compile_reader"]

NAMESPACE = {
    "MalformedError": MalformedError,
    "int_unpacker": primitives.int_unpacker,
    "skip_tags": primitives.skip_tags,
    "tag_header": primitives.tag_header,
    "uuid_text": primitives.uuid_text,
    "varint": primitives.varint,
}


def compile_reader(layout: Layout) -> Program:
    """Return the reader of a message: `run(buf, at) -> dict`, where `buf` is a memoryview of bytes.

    It raises `MalformedError`, `struct.error` or `IndexError` on malformed bytes, never anything else.
    """
    writer = _ReaderSource(layout.flexible)
    writer.out.line("end = len(buf)")
    message = writer.struct(layout.fields)
    writer.out.line(f"return {message}")
    return writer.out.program(str(layout), "def run(buf, at):", NAMESPACE)


class _ReaderSource:
    """The state of writing one reader: the source so far and the fixed-width fields not yet read."""

    def __init__(self, flexible: bool) -> None:
        self.out = Source()
        self.flexible = flexible
        self.pending: list[tuple[str, str]] = []

    def struct(self, fields: tuple[Field, ...]) -> str:
        """Read a structure; return the name of the variable that holds its dict."""
        plain = [field for field in fields if field.tag is None]
        tagged = [field for field in fields if field.tag is not None]
        values = {field.name: self.at_path(field) for field in plain}
        unknown = self.tags(tagged, values) if self.flexible else None
        self.flush()
        result = self.out.name("d")
        self.out.line(f"{result} = {{{', '.join(f'{name!r}: {values[name]}' for name in _names(fields))}}}")
        if unknown:
            self.out.line(f"if {unknown}: {result}['_unknown_tags'] = {unknown}")
        return result

    def at_path(self, field: Field, index: str | None = None) -> str:
        """Read a field; return the expression of its value."""
        outer = self.out.path
        self.out.path = (*outer, (field.name, index))
        value = self.array(field) if field.array else self.value(field)
        self.out.path = outer
        return value

    def value(self, field: Field) -> str:
        """Read a field that is no array."""
        if field.type in FIXED_CODES:
            name = self.fixed(FIXED_CODES[field.type])
            return f"uuid_text({name})" if field.type == "uuid" else name
        if field.type == "struct":
            return self.nullable_struct(field) if field.nullable else self.struct(field.fields)
        return self.sized(field)

    def fixed(self, code: str) -> str:
        """Put a fixed-width value behind those not yet read; return its name."""
        name = self.out.name("v")
        self.pending.append((code, name))
        return name

    def flush(self) -> None:
        """Read the fixed-width values put off so far, in one call."""
        if not self.pending:
            return
        codes = "".join(code for code, _ in self.pending)
        if codes == "B":
            self.out.line(f"{self.pending[0][1]} = buf[at]")
        else:
            names = ", ".join(name for _, name in self.pending)
            self.out.line(f"{names}, = {self.out.struct_method(codes, 'unpack_from')}(buf, at)")
        size = self.out.structs[self.out.struct_method(codes, "unpack_from")].size
        self.out.line(f"at += {size}")
        self.pending.clear()

    def length(self, code: str) -> str:
        """Read the length of a text, of bytes or of an array: -1 or less is null."""
        name = self.fixed("B" if self.flexible else code)
        self.flush()
        if self.flexible:
            self.out.line(f"if {name} > 127: {name}, at = varint(buf, at - 1)")
            self.out.line(f"{name} -= 1")
        return name

    def sized(self, field: Field) -> str:
        """Read a string, bytes or records: a length and that many bytes."""
        out = self.out
        size = self.length("h" if field.type == "string" else "i")
        value = out.name("s")
        out.line(f"if {size} < 0:")
        out.depth += 1
        self.null(field, value)
        out.depth -= 1
        out.line("else:")
        out.depth += 1
        out.line(f"stop = at + {size}")
        out.line("if stop > end:")
        out.line(f" raise MalformedError(f'{{{size}}} bytes of {field.type} expected, {{end - at}} remain')")
        if field.type == "string" and self.flexible:
            out.line(
                f"if {size} > {primitives.MAX_STRING_BYTES}: raise MalformedError(f'a string has at most"
                f" {primitives.MAX_STRING_BYTES} bytes, this one has {{{size}}}')"
            )
        out.line(f"{value} = {_CONVERSIONS[field.type]}")
        out.line("at = stop")
        out.depth -= 1
        return value

    def null(self, field: Field, value: str) -> None:
        """Take null, or refuse it where the field may not be null."""
        if field.nullable:
            self.out.line(f"{value} = None")
        else:
            self.out.line(f"raise MalformedError('{field.type}{' array' * field.array} expected, got null')")

    def nullable_struct(self, field: Field) -> str:
        """Read a structure that is there only when the byte before it is not negative."""
        mark = self.fixed("b")
        self.flush()
        value = self.out.name("s")
        self.out.line(f"{value} = None")
        self.out.line(f"if {mark} >= 0:")
        self.out.depth += 1
        result = self.struct(field.fields)
        self.out.line(f"{value} = {result}")
        self.out.depth -= 1
        return value

    def array(self, field: Field) -> str:
        """Read an array; what its elements need at least is checked before the first is read."""
        out = self.out
        count = self.length("i")
        items = out.name("a")
        out.line(f"if {count} < 0:")
        out.depth += 1
        self.null(field, items)
        out.depth -= 1
        out.line("else:")
        out.depth += 1
        least = minimum_size(field.element(), flexible=self.flexible)
        out.line(f"if {count} * {least} > end - at:")
        out.line(
            f" raise MalformedError(f'{{{count}}} elements of {least} or more bytes expected, {{end - at}} bytes remain')"
        )
        self.elements(field, count, items)
        out.depth -= 1
        return items

    def elements(self, field: Field, count: str, items: str) -> None:
        """Read the elements of an array into a list."""
        out = self.out
        code = FIXED_CODES.get(field.type, "")
        if code and field.type != "uuid":
            out.line(f"{items} = list(int_unpacker({code!r}, {count})(buf, at))")
            out.line(f"at += {count} * {minimum_size(field.element(), flexible=self.flexible)}")
            return
        out.line(f"{items} = []")
        index = out.name("i")
        outer = out.path
        out.path = (*outer[:-1], (field.name, index))
        out.line(f"for {index} in range({count}):")
        out.depth += 1
        value = self.value(field.element())
        self.flush()
        out.line(f"{items}.append({value})")
        out.depth -= 1
        out.path = outer

    def tags(self, tagged: list[Field], values: dict[str, str]) -> str:
        """Read the tagged fields; return the name that holds the unknown ones, or None."""
        out = self.out
        count, unknown = self.fixed("B"), out.name("u")
        self.flush()
        for field in tagged:
            values[field.name] = out.name("t")
            out.line(f"{values[field.name]} = {field.default!r}")
        out.line(f"{unknown} = None")
        out.line(f"if {count}:")
        out.depth += 1
        if tagged:
            self.known_tags(tagged, values, count, unknown)
        else:
            out.line(f"at, {unknown} = skip_tags(buf, at - 1, end)")
        out.depth -= 1
        return unknown

    def known_tags(self, tagged: list[Field], values: dict[str, str], count: str, unknown: str) -> None:
        """Read tagged fields of which some are known: each value must end where its size says."""
        out = self.out
        tag, size, stop = out.name("tag"), out.name("n"), out.name("stop")
        out.line(f"{count}, at = varint(buf, at - 1)")
        out.line(f"{unknown} = {{}}")
        out.line(f"for _ in range({count}):")
        out.depth += 1
        out.line(f"{tag}, {size}, at = tag_header(buf, at, end)")
        out.line(f"{stop} = at + {size}")
        for place, field in enumerate(tagged):
            out.line(f"{'el' if place else ''}if {tag} == {field.tag}:")
            out.depth += 1
            value = self.at_path(field)
            self.flush()
            out.line(f"{values[field.name]} = {value}")
            out.depth -= 1
        out.line("else:")
        out.line(f" if len({unknown}) < {primitives.MAX_KEPT_TAGS}: {unknown}[{tag}] = bytes(buf[at:{stop}])")
        out.line(f" at = {stop}")
        out.line(
            f"if at != {stop}: raise MalformedError(f'tagged field {{{tag}}} is said to have {{{size}}} bytes,"
            f" its value has {{at - {stop} + {size}}}')"
        )
        out.depth -= 1


_CONVERSIONS = {
    "string": "str(buf[at:stop], 'utf-8', 'replace')",
    "bytes": "bytes(buf[at:stop])",
    "records": "buf[at:stop]",
}


def _names(fields: tuple[Field, ...]) -> list[str]:
    return [field.name for field in fields]
