"""The console that results are printed to: standard output, as wide as it needs to be where it is no terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

__all__ = ["print_lines", "results_console"]

_WIDTH_OF_A_FILE = 240  # columns; a table in a file or a pipe is not folded


def results_console() -> Console:
    """Return the console for results."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    return console


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Print lines as they are: none is folded, and no digit is cut."""
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
