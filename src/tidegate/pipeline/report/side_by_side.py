"""Columns beside one another, a line for each measure, in as many tables as the width asks for.

A table has a column of labels and one for each thing that is compared. What is compared with is the first column and
begins every table. A number is never cut: where columns do not fit, the rest of them follow in a table of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.text import Text

from tidegate.pipeline.report.text import fitted

__all__ = ["Block", "Measure", "side_by_side"]

_INDENT = "  "
_WIDEST_NAME = 40  # cells of a column that only its name asks for
_NAME_LINES = 3


@dataclass(frozen=True, slots=True)
class Measure:
    """One line: its label, and a cell for each column; an empty one says nothing."""

    label: str
    cells: Sequence[str]


@dataclass(frozen=True, slots=True)
class Block:
    """One compared thing: its name over the whole width, then its measures."""

    name: str
    measures: Sequence[Measure]


def side_by_side(
    title: str, names: Sequence[str], blocks: Sequence[Block], *, head: Measure, width: int
) -> Iterator[Text]:
    """Yield the lines of the tables. names: of the columns; the first is in each table. width: cells of a line.

    head: what belongs to the names, a line below them.
    """
    measures = [head, *(line for block in blocks for line in block.measures)]
    label_width = max(
        cell_len(title),
        *(len(_INDENT) + cell_len(line.label) for line in measures),
    )
    contents = [max(1, *(cell_len(line.cells[at]) for line in measures)) for at in range(len(names))]
    for columns in _parted(contents, width - label_width):
        widths = _widened(
            [contents[at] for at in columns], [names[at] for at in columns], width - label_width
        )
        yield from _header(title, [names[at] for at in columns], label_width, widths)
        yield _line(_INDENT + head.label, [head.cells[at] for at in columns], label_width, widths)
        yield Text("─" * (label_width + sum(widths)))
        for block in blocks:
            yield Text(fitted(block.name, width), style="bold")
            for line in block.measures:
                cells = [line.cells[at] for at in columns]
                if any(cells):
                    yield _line(_INDENT + line.label, cells, label_width, widths)
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
    """Return the width of each column, the gap before it included: two cells where there is room, and names whole."""
    widths = [content + 1 for content in contents]
    wanted = [
        max(content, min(cell_len(name), _WIDEST_NAME)) + 2
        for content, name in zip(contents, names, strict=True)
    ]
    while sum(widths) < room and widths != wanted:
        at = min((at for at in range(len(widths)) if widths[at] < wanted[at]), key=widths.__getitem__)
        widths[at] += 1
    return widths


def _header(title: str, names: Sequence[str], label_width: int, widths: Sequence[int]) -> Iterator[Text]:
    folded = [_folded(name, width - 1) for name, width in zip(names, widths, strict=True)]
    lines = max(map(len, folded))
    for at in range(lines):
        cells = [name[at - lines] if at >= lines - len(name) else "" for name in folded]
        line = _line(title if at == lines - 1 else "", cells, label_width, widths)
        line.stylize("bold")
        yield line


def _folded(name: str, width: int) -> list[str]:
    """Return a name in lines of at most `width` cells."""
    lines = chop_cells(name, max(width, 2))
    return [*lines[: _NAME_LINES - 1], fitted("".join(lines[_NAME_LINES - 1 :]), max(width, 2))][: len(lines)]


def _line(label: str, cells: Sequence[str], label_width: int, widths: Sequence[int]) -> Text:
    text = label + " " * (label_width - cell_len(label))
    for cell, width in zip(cells, widths, strict=True):
        text += " " * (width - cell_len(cell)) + cell
    return Text(text.rstrip())
