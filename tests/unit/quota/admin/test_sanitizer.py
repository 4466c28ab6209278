"""Sanitising of names: round trips, and what Java's decoder accepts and refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.quota.admin.sanitizer import SanitizeError, desanitize, jmx_sanitize, sanitize

NAMES = st.text(st.characters(exclude_categories=["Cs"]))


@given(name=NAMES)
def test_every_name_comes_back(name: str) -> None:
    """What was sanitised desanitises to itself and holds nothing but harmless ASCII."""
    text = sanitize(name)
    assert desanitize(text) == name
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_%")


@given(first=NAMES, second=NAMES)
def test_names_do_not_collide(first: str, second: str) -> None:
    """Two names share a sanitised form only when they are the same; none is taken for the default entity."""
    assert (sanitize(first) == sanitize(second)) is (first == second)
    assert sanitize(first) != "<default>"


def test_lone_surrogates_become_question_marks_and_pairs_their_character() -> None:
    """As Java encodes them: a pair in two halves is the character, a half alone is unknown."""
    assert sanitize("\ud83d") == "%3F"
    assert sanitize("a\udc00\ud800b") == "a%3F%3Fb"
    assert sanitize("\ud83d\ude00\ud83d") == "%F0%9F%98%80%3F"


@pytest.mark.parametrize("text", ["%", "a%4", "%zz", "%-1", "%%41", "% 1", "%1_", "%0x", "%1+"])
def test_malformed_escape_is_named(text: str) -> None:
    """Where Java throws, we raise, and the message shows the text."""
    with pytest.raises(SanitizeError) as caught:
        desanitize(text)
    message = f"cannot decode {text!r}: expected two hexadecimal digits after every '%'"
    assert (str(caught.value), caught.value.text) == (message, text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("%+f", "\x0f"),
        ("%-0", "\x00"),
        ("%\uff11\uff21", "\x1a"),
        ("%\u0664\u0661", "A"),
        ("%C3+%A9", "\ufffd \ufffd"),
        ("%F0%9F%98%80", "\U0001f600"),
        ("\ud800", "\ud800"),
    ],
)
def test_java_reads_more_than_plain_hexadecimal(text: str, name: str) -> None:
    """Signs, digits of other scripts and broken UTF-8 are read as Java's decoder reads them."""
    assert desanitize(text) == name


@pytest.mark.parametrize(
    ("name", "bean"),
    [
        ("a b\t%.-_9", "a b\t%.-_9"),
        ("a:b", '"a:b"'),
        ('q"*?\\', r'"q\"\*\?\\"'),
        ("x\ny", '"x\\ny"'),
        ("ab\n", '"ab\\n"'),
    ],
)
def test_jmx_quotes_what_is_out_of_the_ordinary(name: str, bean: str) -> None:
    """Quotes, wildcards, backslashes and line ends are escaped within the quotes."""
    assert jmx_sanitize(name) == bean
