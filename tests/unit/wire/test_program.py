"""The compiled code: what it looks like, and how a failing line is turned into a path."""

from tidegate.wire.codecs import reader, writer
from tidegate.wire.definitions import layout
from tidegate.wire.program import Failure, Source, failure, repeated_structs


def test_line_that_fails_tells_the_field():
    """The path of the innermost failing line goes through the function that it was called from."""
    source = Source()
    with source.function("run", "items"):
        with source.about("topics"), source.about_element("i"), source.indented("for i in range(3):"):
            source.line("inner(items[i])")
        with source.function("inner", "value"), source.about("size"):
            source.line("return 1 / value")
    program = source.program("a test", {})
    try:
        program.function([1, 2, 0])
    except ZeroDivisionError as error:
        found = failure(program, error.__traceback__)
    assert found.path == "topics[2].size"


def test_traceback_of_other_code_tells_nothing():
    """An error that passed no line of the program has no path."""
    assert failure(reader(12, 0, "request"), None) == Failure(path="", at=0, remaining=0)


def test_repeated_structures_are_found():
    """A structure that occurs twice in a message is one function; hot messages have none."""
    assert repeated_structs(layout(88, 0, "request").fields)
    assert not repeated_structs(layout(0, 9, "request").fields)
    assert not repeated_structs(layout(3, 12, "response").fields)


def test_adjacent_fields_are_one_struct_call():
    """A run of fixed-width fields is read, and packed, in one call."""
    assert "unpack_from_hiB(buf, at)" in reader(0, 9, "request").text
    assert "pack_hiiiB(" in writer(3, 12, "response").text


def test_every_line_has_a_path():
    """For each line of a program there is the field that it is about."""
    program = writer(3, 12, "response")
    assert len(program.spots) == len(program.text.splitlines())
