"""The console for results: standard output, as wide as needed where it is not a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tidegate.config.locations import Location
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.report.documents import json_text
from tidegate.pipeline.report.missing_report import missing_document, missing_notes
from tidegate.pipeline.report.text import things_text

__all__ = ["print_document", "print_ending", "print_lines", "results_console"]

_WIDTH_OF_A_FILE = 240  # columns; a table in a file or a pipe is not folded


class _ResultsConsole(Console):
    """Leaves it to the command what comes of a reader that has gone: it is no answer of ours."""

    def on_broken_pipe(self) -> None:
        raise  # rich calls this where it has caught the error


def results_console() -> Console:
    """Return the console for results."""
    console = _ResultsConsole(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    return console


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Print lines as they are: none is folded, and no digit is cut."""
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def print_ending(
    console: Console,
    missing: Sequence[Missing],
    *,
    with_cold_starts: bool,
    events: int,
    out: Location | None,
) -> None:
    """Print what every command ends with that writes tables: what is missing, how many events, where the tables are."""
    for note in missing_notes(missing, with_cold_starts=with_cold_starts):
        console.print(note)
    console.print(things_text(events, "event"))
    if out is not None:
        console.print(f"tables: {out}")


def print_document(document: Mapping[str, Any], missing: Sequence[Missing]) -> None:
    """Print what such a command prints with --json."""
    print(json_text({**document, **missing_document(missing)}))
