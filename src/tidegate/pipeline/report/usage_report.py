"""The usage summary as a table for the terminal: a line for each client where there is room, else two."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from tidegate.pipeline.report.text import (
    bytes_text,
    count_text,
    duration_text,
    fitted,
    name_text,
    percent_text,
)

__all__ = ["usage_lines"]

_NS_PER_MS = 1_000_000
_LONGEST_NAME = 40  # cells
_SHORTEST_NAME = 6  # cells
_GAP = "  "
_NAMES = {"client_id": "client-id", "user": "user", "listener": "listener", "client_software": "software"}
_HEADERS = (
    "requests",
    "mutations",
    "throttled",
    "throttle",
    "produced",
    "peak/s",
    "fetched",
    "peak/s",
    "thread time",
)

Cells = Sequence[str]


def usage_lines(
    rows: Sequence[Mapping[str, Any]], *, by: Sequence[str], groups: int, width: int
) -> Iterator[Text]:
    """Yield the lines of the table of `rows`, the first of `groups` in all.

    rows: columns `usage_by(by)`. by: the columns that they are grouped by. width: cells of a line.
    """
    shown = "" if len(rows) == groups else f" (the {len(rows)} with most bytes of {count_text(groups)})"
    yield Text(f"usage by {' and '.join(_NAMES[key] for key in by)}{shown}", style="italic")
    yield Text()
    keys = by[::-1]  # of a client the client id first: it says more than a user who is ANONYMOUS
    names = [[fitted(name_text(row[key]), _LONGEST_NAME) for key in keys] for row in rows]
    table = [[*cells, *_measures(row)] for cells, row in zip(names, rows, strict=True)]
    header = [*(_NAMES[key] for key in keys), *_HEADERS]
    if _width([header, *table]) <= width:
        yield from _aligned([[line] for line in (header, *table)], len(by), _widths([header, *table]))
        return
    folded = [_folded(line, len(by)) for line in (header, *table)]
    folded[0][0][-1], folded[0][1][-1] = header[-1].split()
    widths = _widths([line for lines in folded for line in lines])
    widths[0] = max(_SHORTEST_NAME, min(widths[0], width - sum(widths[1:]) - len(_GAP) * (len(widths) - 1)))
    yield from _aligned(folded, 1, widths)


def _measures(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of `_HEADERS`."""
    throttle_ms = sum(row[f"{kind}_throttle_ms"] for kind in ("produce", "fetch", "request", "mutation"))
    throttled = row["throttled_requests"]
    return [
        count_text(row["requests"]),
        count_text(row["mutations"]),
        percent_text(throttled, row["requests"]) if throttled else "never",
        duration_text(throttle_ms) if throttle_ms else "–",
        bytes_text(row["produce_bytes"]),
        bytes_text(row["peak_produce_bytes_per_second"]),
        bytes_text(row["fetch_bytes"]),
        bytes_text(row["peak_fetch_bytes_per_second"]),
        duration_text((row["handler_ns"] + row["network_ns"]) // _NS_PER_MS),
    ]


def _folded(cells: Cells, names: int) -> list[list[str]]:
    """Return a line as two: every other measure below the one before it, the second name below the first."""
    measures = list(cells[names:])
    below = f"  {cells[1]}" if names > 1 else ""
    return [[cells[0], *measures[::2]], [below, *measures[1::2], ""]]


def _widths(lines: Sequence[Cells]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*lines, strict=True)]


def _width(lines: Sequence[Cells]) -> int:
    widths = _widths(lines)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _aligned(items: Sequence[Sequence[Cells]], names: int, widths: Sequence[int]) -> Iterator[Text]:
    """Yield the header, a rule, and the lines: names to the left, numbers to the right."""
    for at, lines in enumerate(items):
        for cells in lines:
            padded = [
                _padded(fitted(cell, width) if column < names else cell, width, left=column < names)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            yield Text(_GAP.join(padded).rstrip(), style="bold" if at == 0 else "")
        if at == 0:
            yield Text("─" * (sum(widths) + len(_GAP) * (len(widths) - 1)))


def _padded(cell: str, width: int, *, left: bool) -> str:
    blanks = " " * (width - cell_len(cell))
    return cell + blanks if left else blanks + cell
