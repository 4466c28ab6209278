"""Tables of results: each is declared once and rendered as lines for a terminal or, by `page.html`, as HTML.

    Table(caption="clients", columns=[Column("client-id", "client_id", name_text, is_name=True),
                                      Column("requests", "requests", count_text)], rows=rows)

A declaration says for each column its heading, its key in a row, and how the value is written with its unit. JSON
documents contain all columns of a row (`documents`); a table shows some.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.text import Text

from tidegate.pipeline.report.text import NOTHING, fitted

__all__ = [
    "Block",
    "Column",
    "Measure",
    "Row",
    "Table",
    "side_by_side",
    "stacked",
    "table_lines",
    "table_width",
]

Row = Mapping[str, Any]

_GAP = "  "
_INDENT = "  "
_SHORTEST_NAME = 6  # cells that a column of names has at least
_WIDEST_NAME = 40  # cells of a column that only its name asks for
_NAME_LINES = 3


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, the key of its value in a row, and the format of the value.

    key: of a row, or a function of it; a value None is shown as `–`. A heading and a cell may have several lines.
    is_name: aligned left, and folded if there is no room; other columns are numbers, which are never cut.
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
    """Rows with a caption; group: a key, a blank line separates rows that differ in it."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    group: str | None = None

    def cells(self) -> list[list[str]]:
        """Return the text of all cells, by row."""
        return [[column.text(row) for column in self.columns] for row in self.rows]


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
    previous = None
    for row, cells in zip(table.rows, rows, strict=True):
        group = None if table.group is None else row[table.group]
        if previous not in (None, group):
            yield Text()
        previous = group
        yield from _lines(cells, table, widths)


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
        padded = [
            _padded(cell, width, is_left=column.is_name)
            for cell, width, column in zip(line, widths, table.columns, strict=True)
        ]
        yield Text(_GAP.join(padded).rstrip(), style=style)


def _padded(cell: str, width: int, *, is_left: bool) -> str:
    blanks = " " * (width - cell_len(cell))
    return cell + blanks if is_left else blanks + cell


def _folded_words(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` cells, broken at blanks if possible."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}".strip()
        lines[-1:] = [joined] if cell_len(joined) <= width else [lines[-1], *chop_cells(word, width)]
    return [line for line in lines if line]


# --- side by side -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measure:
    """One line: its label, and a cell for each column; an empty cell is blank."""

    label: str
    cells: Sequence[str]


@dataclass(frozen=True, slots=True)
class Block:
    """One compared entity: its name over the whole width, then its measures."""

    name: str
    measures: Sequence[Measure]


def side_by_side(
    title: str, names: Sequence[str], blocks: Sequence[Block], *, head: Measure, width: int
) -> Iterator[Text]:
    """Yield tables of measures by column, as many as the width requires. width: cells of a line.

    names: of the columns; every table begins with the first column, and the others follow in order. No number is cut.
    head: the line below the names.
    """
    measures = [head, *(measure for block in blocks for measure in block.measures)]
    label_width = max(cell_len(title), *(len(_INDENT) + cell_len(measure.label) for measure in measures))
    contents = [max(1, *(cell_len(measure.cells[at]) for measure in measures)) for at in range(len(names))]
    for columns in _parted(contents, width - label_width):
        shown = [names[at] for at in columns]
        widths = _widened([contents[at] for at in columns], shown, width - label_width)
        folded = [_folded_name(name, wide - 1) for name, wide in zip(shown, widths, strict=True)]
        for line in range(-max(map(len, folded)), 0):
            cells = [name[line] if -line <= len(name) else "" for name in folded]
            yield _measure_line(title if line == -1 else "", cells, label_width, widths, style="bold")
        yield _measure_line(_INDENT + head.label, [head.cells[at] for at in columns], label_width, widths)
        yield Text("─" * (label_width + sum(widths)))
        for block in blocks:
            yield Text(fitted(block.name, width), style="bold")
            for measure in block.measures:
                cells = [measure.cells[at] for at in columns]
                if any(cells):
                    yield _measure_line(_INDENT + measure.label, cells, label_width, widths)
        yield Text()


def _parted(contents: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the columns of each table, by place: the first, and as many others as fit with a cell between them."""
    left = list(range(1, len(contents)))
    while True:
        columns, used = [0], contents[0] + 1
        while left and (len(columns) == 1 or used + contents[left[0]] + 1 <= room):
            used += contents[left[0]] + 1
            columns.append(left.pop(0))
        yield columns
        if not left:
            return


def _widened(contents: Sequence[int], names: Sequence[str], room: int) -> list[int]:
    """Return the width of each column and the gap before it: if there is room, two cells, and enough for its name."""
    widths = [content + 1 for content in contents]
    wanted = [
        max(content, min(cell_len(name), _WIDEST_NAME)) + 2
        for content, name in zip(contents, names, strict=True)
    ]
    while sum(widths) < room and widths != wanted:
        at = min((at for at in range(len(widths)) if widths[at] < wanted[at]), key=widths.__getitem__)
        widths[at] += 1
    return widths


def _folded_name(name: str, width: int) -> list[str]:
    """Return a name in lines of at most `width` cells."""
    lines = chop_cells(name, max(width, 2))
    rest = fitted("".join(lines[_NAME_LINES - 1 :]), max(width, 2))
    return [*lines[: _NAME_LINES - 1], rest][: len(lines)]


def _measure_line(
    label: str, cells: Sequence[str], label_width: int, widths: Sequence[int], *, style: str = ""
) -> Text:
    numbers = (_padded(cell, width, is_left=False) for cell, width in zip(cells, widths, strict=True))
    return Text("".join((_padded(label, label_width, is_left=True), *numbers)).rstrip(), style=style)
