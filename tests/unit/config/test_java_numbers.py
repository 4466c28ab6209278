"""Tests of numbers as Java reads and writes them. Expected values: Java 17."""

import pytest

from tidegate.config.java_numbers import double_text, read_double, read_number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (0.5, "0.5"),
        (-2.0, "-2.0"),
        (1e300, "1.0E300"),
        (0.00025, "2.5E-4"),
        (-1.25e7, "-1.25E7"),
        (1234567.0, "1234567.0"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_written_as_java_does(number: float, text: str) -> None:
    """Small and large ones have an exponent."""
    assert double_text(number) == text


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", "", "x", "0x1", "1e", "٣", "1ff"])
def test_what_is_no_double_in_java(text: str) -> None:
    """Python alone takes some of them."""
    with pytest.raises(ValueError, match=r"^"):
        read_double(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1f", 1.0), ("-.5D", -0.5), ("0x1.8p1", 3.0), ("0x1p9999", float("inf")), ("+Infinity", float("inf"))],
)
def test_what_is_a_double_in_java(text: str, number: float) -> None:
    """Suffixes and hexadecimal ones too."""
    assert read_double(text) == number


def test_whole_numbers_have_limits() -> None:
    """From the smallest to the largest of two's complement."""
    assert (read_number("+127", 127), read_number("-128", 127)) == (127, -128)
    for text in ("128", "-129", "+-1", "1_0", " 1"):
        with pytest.raises(ValueError, match=r"^"):
            read_number(text, 127)
