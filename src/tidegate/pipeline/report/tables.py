"""Tables of results: each is declared once and rendered as lines for a terminal or, by `page.html`, as HTML.

    Table(caption="clients", columns=[Column("client-id", "client_id", name_text, is_name=True),
                                      Column("requests", "requests", count_text)], rows=rows)

A declaration gives the heading of each column, its key in a row, and the format of its value, with the unit. JSON
documents contain all columns of a row (`documents`); a table shows some.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.text import Text

from tidegate.pipeline.report.names import fitted, padded
from tidegate.pipeline.report.text import NOTHING

__all__ = [
    "Cells",
    "Column",
    "Row",
    "Table",
    "side_by_side",
    "stacked",
    "table_lines",
    "table_width",
]

Row = Mapping[str, Any]
Cells = Sequence[str]

_GAP = "  "
_SHORTEST_NAME = 6  # cells that a column of names has at least
_WIDEST_NAME = 40  # cells of a column that only its name asks for
_NAME_LINES = 3


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, the key of its value in a row, and the format of the value.

    key: of a row, or a function of it; a value None is shown as `–`. A heading and a cell may have several lines.
    is_name: aligned left, and folded in narrow tables; other columns are numbers, which are never cut.
    least: cells that the column takes at least.
    """

    heading: str
    key: str | Callable[[Any], Any]
    format: Callable[[Any], str] = str
    is_name: bool = False
    least: int = 0

    def text(self, row: Any) -> str:
        """Return the cell of a row."""
        value = row[self.key] if isinstance(self.key, str) else self.key(row)
        return NOTHING if value is None else self.format(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows with a caption. A row that is a text takes the whole width of a terminal, and is not shown on the page."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Any]

    def cells(self) -> list[list[str]]:
        """Return the text of all cells, by row."""
        rows = (row for row in self.rows if not isinstance(row, str))
        return [[column.text(row) for column in self.columns] for row in rows]


def stacked(columns: Sequence[Column]) -> Column:
    """Return columns as one, their cells and the last lines of their headings below one another."""
    heading = "\n".join(column.heading.rpartition("\n")[2] for column in columns)
    return Column(
        heading, lambda row: "\n".join(column.text(row) for column in columns), is_name=columns[0].is_name
    )


def table_width(table: Table) -> int:
    """Return the cells of the lines of a table in which nothing is folded."""
    return _width(_widths(table.columns, _items(table)))


def table_lines(table: Table, *, width: int) -> Iterator[Text]:
    """Yield the caption, the headings and the rows of a table. width: cells of a line."""
    items = _items(table)
    widths = _widths(table.columns, items)
    if over := max(0, _width(widths) - width):
        at = max((at for at, column in enumerate(table.columns) if column.is_name), key=widths.__getitem__)
        widths[at] = max(_SHORTEST_NAME, widths[at] - over)
        for cells in items:
            cells[at] = [part for line in cells[at] for part in _folded_words(line, widths[at])]
    if table.caption:
        yield from (Text(table.caption, style="italic"), Text())
    headings, *rows = items
    most = max(map(len, headings))
    yield from _lines([[""] * (most - len(lines)) + lines for lines in headings], table, widths, style="bold")
    yield Text("─" * _width(widths))
    cells_of = iter(rows)
    for row in table.rows:
        if isinstance(row, str):
            yield Text(fitted(row, width), style="bold")
        else:
            yield from _lines(next(cells_of), table, widths)


def _items(table: Table) -> list[list[list[str]]]:
    """Return the headings and the rows; of each its cells; of each its lines."""
    cells = [[column.heading for column in table.columns], *table.cells()]
    return [[cell.split("\n") for cell in item] for item in cells]


def _widths(columns: Sequence[Column], items: Sequence[Sequence[Sequence[str]]]) -> list[int]:
    return [
        max(column.least, *(cell_len(line) for item in items for line in item[at]))
        for at, column in enumerate(columns)
    ]


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _lines(
    cells: Sequence[Sequence[str]], table: Table, widths: Sequence[int], *, style: str = ""
) -> Iterator[Text]:
    for line in zip_longest(*cells, fillvalue=""):
        shown = [
            padded(cell, width, is_left=column.is_name)
            for cell, width, column in zip(line, widths, table.columns, strict=True)
        ]
        yield Text(_GAP.join(shown).rstrip(), style=style)


def _folded_words(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` cells, broken at blanks if possible."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}".strip()
        lines[-1:] = [joined] if cell_len(joined) <= width else [lines[-1], *chop_cells(word, width)]
    return [line for line in lines if line]


def side_by_side(
    title: str, names: Sequence[str], head: Cells, lines: Sequence[str | Cells], *, width: int
) -> Iterator[Text]:
    """Yield tables of lines with a column for each name, as many as the width requires. width: cells of a line.

    lines: a label and a cell for each name, or a text over the whole width. head: such a line, below the names. Every
    table begins with the first name, and the others follow in order. Numbers are not cut, but names are folded.
    """
    measures = [head, *(line for line in lines if not isinstance(line, str))]
    label, *contents = (max(map(cell_len, cells)) for cells in zip(*measures, strict=True))
    left = width - max(label, cell_len(title)) - len(_GAP)
    labels = Column(f"{title}\n{head[0]}", itemgetter(0), is_name=True)
    for columns in _parted(contents, left):
        spare = left - sum(contents[at] for at in columns) - len(_GAP) * (len(columns) - 1)
        widest = [contents[at] + max(0, spare) // len(columns) for at in columns]
        shown = [
            Column(f"{_folded_name(names[at], room)}\n{head[at + 1]}", itemgetter(at + 1))
            for at, room in zip(columns, widest, strict=True)
        ]
        rows = [line for line in lines if isinstance(line, str) or any(line[at + 1] for at in columns)]
        yield from table_lines(Table(caption="", columns=[labels, *shown], rows=rows), width=width)
        yield Text()


def _parted(contents: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield the columns of each table, by place: the first, and as many others as fit."""
    columns = [0]
    for at, content in enumerate(contents[1:], start=1):
        if len(columns) > 1 and sum(contents[of] + len(_GAP) for of in columns) + content > width:
            yield columns
            columns = [0]
        columns.append(at)
    yield columns


def _folded_name(name: str, width: int) -> str:
    """Return a name in at most three lines of at most `width` cells."""
    width = min(width, _WIDEST_NAME)
    lines = chop_cells(name, width)
    rest = fitted("".join(lines[_NAME_LINES - 1 :]), width)
    return "\n".join([*lines[: _NAME_LINES - 1], rest][: len(lines)])
