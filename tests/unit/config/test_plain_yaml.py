"""The strict YAML reader: what it gives back, and what it refuses with its line."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.plain_yaml import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    ConfigFileError,
    ListNode,
    Node,
    ScalarNode,
    TableNode,
    other_meaning,
    read_plain_yaml,
)
from tidegate.errors import ConfigError


def _plain(node: Node) -> object:
    if isinstance(node, ScalarNode):
        return node.text
    if isinstance(node, ListNode):
        return [_plain(item) for item in node.items]
    return {key: _plain(item) for key, item in node.items.items()}


def test_scalars_stay_the_texts_that_they_are() -> None:
    """No number, boolean, date or null is made of anything."""
    tree = read_plain_yaml('a: no\nb: [1e3, 012, ~, "x"]\nc:\n  d: 2024-01-01\n', name="f")
    assert _plain(tree) == {"a": "no", "b": ["1e3", "012", "~", "x"], "c": {"d": "2024-01-01"}}


def test_nodes_know_their_lines_and_quotes() -> None:
    """Lines begin with 1; keys have their own."""
    tree = read_plain_yaml("# head\na: x\nb:\n  - 'y'\n  - z\n", name="f")
    assert isinstance(tree, TableNode)
    assert tree.key_lines == {"a": 2, "b": 3}
    items = tree.items["b"]
    assert isinstance(items, ListNode)
    assert items.items == [
        ScalarNode(text="y", quoted=True, line=4),
        ScalarNode(text="z", quoted=False, line=5),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f:1: file is empty"),
        ("a: 1\na: 2", "f:2: repeated key 'a', first on line 1"),
        ("a: &x [1]\nb: *x", "f:1: anchors such as &x are not supported, repeat the text"),
        ("a: *x", "f:1: aliases such as *x are not supported, repeat the text"),
        ("a: !!str 1", "f:1: tags such as tag:yaml.org,2002:str are not supported"),
        ("a: !x 1", "f:1: tags such as !x are not supported"),
        ("%YAML 1.1\n---\na: 1", "f:1: directives such as %YAML are not supported"),
        ("%TAG ! tag:x,2000:\n---\na: 1", "f:1: directives such as %YAML are not supported"),
        ("a: 1\n---\nb: 1", "f:2: expected one document, got a second one"),
        ("? [a]\n: 1", "f:1: a key must be a string"),
        ("a: 1\nb: \x01", "f:2: contains a character that YAML does not allow"),
        (
            "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
            f"f:1: nested too deep, expected at most {MAX_DEPTH} levels",
        ),
    ],
)
def test_what_a_configuration_needs_not_is_refused(text: str, message: str) -> None:
    """Each with one sentence and its line."""
    with pytest.raises(ConfigFileError) as caught:
        read_plain_yaml(text, name="f")
    assert str(caught.value) == message
    assert (caught.value.name, message.startswith(f"f:{caught.value.line}: ")) == ("f", True)


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\ta: 1", '"', "a: 1\n b: 2", "{", "- a\nb: c", "%"])
def test_broken_yaml_is_told_with_its_line(text: str) -> None:
    """The parser's own words follow ours."""
    with pytest.raises(ConfigFileError, match=r"^f:[0-9]+: invalid YAML: "):
        read_plain_yaml(text, name="f")


def test_nesting_up_to_the_bound_is_read() -> None:
    """The bound itself is allowed."""
    tree = read_plain_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH, name="f")
    assert isinstance(tree, ListNode)


@pytest.mark.parametrize("bomb", ["[" * 1_000_000, "{a: " * 500_000, "- " * 500_000, "? " * 500_000])
def test_deep_nesting_costs_nothing(bomb: str) -> None:
    """It is refused at the bound, not read to its end."""
    with pytest.raises(ConfigFileError, match="nested too deep, expected at most 16 levels"):
        read_plain_yaml(bomb, name="f")


def test_file_that_is_too_large_is_refused() -> None:
    """By its size in bytes, not in characters."""
    with pytest.raises(ConfigFileError, match=rf"^f: file must be at most {MAX_FILE_BYTES} bytes, got"):
        read_plain_yaml("é" * (MAX_FILE_BYTES // 2 + 1), name="f")


MEANINGS = {
    "a boolean": ["y", "Yes", "no", "NO", "n", "true", "False", "on", "OFF"],
    "null": ["", "~", "null", "NULL"],
    "a number": [
        "0",
        "42",
        "-1",
        "+1",
        "1e3",
        "1E-3",
        ".5",
        "1.",
        "1_000",
        "017",
        "0x1F",
        "0o17",
        "0b1",
        ".inf",
        "-.INF",
        ".NaN",
    ],
    "a number in base 60": ["12:30", "1:2:3:4:5:6:7:8", "190:20:30.15"],
    "a date": ["2024-01-01", "2024-1-1T10:00:00Z", "2001-12-14 21:59:43.10 -5"],
    "a merge key": ["<<", "="],
}


@pytest.mark.parametrize(
    ("meaning", "text"), [(key, text) for key, texts in MEANINGS.items() for text in texts]
)
def test_plain_scalars_that_may_mean_something_else(meaning: str, text: str) -> None:
    """In YAML 1.1 or 1.2; in quotes they mean what they say."""
    assert other_meaning(ScalarNode(text=text, quoted=False, line=1)) == meaning
    assert other_meaning(ScalarNode(text=text, quoted=True, line=1)) is None


@pytest.mark.parametrize(
    "text", ["alice", "10.0.0.1", "2001:db8::1", "1a", "nobody", "e3", "2024-01", "4MiB", "-", "a b"]
)
def test_plain_texts_are_texts(text: str) -> None:
    """Nothing is suspected without a reason."""
    assert other_meaning(ScalarNode(text=text, quoted=False, line=1)) is None


@given(text=st.text("0123456789+-._:eExobyntrufalsYNT~<=/ ", min_size=1, max_size=12))
def test_whatever_pyyaml_does_not_read_as_text_is_suspected(text: str) -> None:
    """Our list of traps has all that PyYAML's resolver has."""
    tag = yaml.resolver.Resolver().resolve(yaml.ScalarNode, text, (True, False))
    if tag != "tag:yaml.org,2002:str":
        assert other_meaning(ScalarNode(text=text, quoted=False, line=1)) is not None


@given(
    text=st.text(st.sampled_from(list("ab:-?[]{},&*!|>'\"%@`# \n\t\\\u0085\ufeff\x00\ud8001e")), max_size=40)
)
def test_any_text_is_a_tree_or_one_error(text: str) -> None:
    """No input leads to anything but a tree or a `ConfigError`."""
    try:
        tree = read_plain_yaml(text, name="f")
    except ConfigError:
        return
    assert isinstance(tree, ScalarNode | ListNode | TableNode)
