"""The console for results: standard output, as wide as needed where it is not a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tidegate.config.locations import Location
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.report.documents import missing_document
from tidegate.pipeline.report.json_text import json_text
from tidegate.pipeline.report.notes import missing_notes
from tidegate.pipeline.report.tables import Table, table_lines
from tidegate.pipeline.report.text import things_text

__all__ = ["print_document", "print_ending", "print_lines", "print_table", "results_console"]

_WIDTH_OF_A_FILE = 240  # columns; a table in a file or a pipe is not folded


class _ResultsConsole(Console):
    """A console that leaves a closed pipe to the command."""

    def on_broken_pipe(self) -> None:
        raise  # rich calls this where it has caught the error


def results_console() -> Console:
    """Return the console for results."""
    console = _ResultsConsole(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    return console


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Print lines without folding or cutting them."""
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def print_table(console: Console, table: Table) -> None:
    """Print a table and a blank line."""
    print_lines(console, (*table_lines(table, width=console.width), Text()))


def print_ending(
    console: Console,
    missing: Sequence[Missing],
    *,
    with_cold_starts: bool,
    events: int,
    out: Location | None,
) -> None:
    """Print the last lines of a command that writes tables: missing rows, number of events, directory of the tables."""
    for note in missing_notes(missing, with_cold_starts=with_cold_starts):
        console.print(note)
    console.print(things_text(events, "event"))
    if out is not None:
        console.print(f"tables: {out}")


def print_document(document: Mapping[str, Any], missing: Sequence[Missing]) -> None:
    """Print the document of such a command, with the missing rows."""
    print(json_text({**document, **missing_document(missing)}))
