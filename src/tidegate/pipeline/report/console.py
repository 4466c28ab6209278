"""The console that results are printed to: standard output, as wide as it needs to be where it is no terminal."""

from rich.console import Console

__all__ = ["results_console"]

_WIDTH_OF_A_FILE = 240  # columns; a table in a file or a pipe is not folded


def results_console() -> Console:
    """Return the console for results."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    return console
