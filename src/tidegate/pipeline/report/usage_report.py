"""The usage summary as a table for the terminal: a line for each client where there is room, else three."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from tidegate.pipeline.report.text import (
    bytes_text,
    count_text,
    duration_text,
    fitted,
    name_text,
    nanoseconds_text,
    percent_text,
)

__all__ = ["usage_lines"]

_NS_PER_MS = 1_000_000
_LONGEST_NAME = 40  # cells
_SHORTEST_NAME = 6  # cells
_GAP = "  "
_NAMES = {"client_id": "client-id", "user": "user", "listener": "listener", "client_software": "software"}
_HEADERS = (
    "requests", "mutations", "size p99",
    "throttled", "delay", "delay p99",
    "produced", "peak/s", "mean/s",
    "fetched", "peak/s", "mean/s",
    "time", "peak", "p99",
)  # fmt: skip
_ABOVE = {7: "produced", 8: "produced", 10: "fetched", 11: "fetched", 13: "time", 14: "time"}
"""What stands above a header, by its place, where measures stand beside one another."""
_FOLDED = 3  # lines of a client: as many measures stand below one another
_THREE_DIGITS = 100
_MOST_PERCENT = 99_999  # of a thread: there is no broker with a thousand of them
_LEAST_MS = 10_000  # that a mean is over, as a rate is (B§1.4)

Cells = Sequence[str]


def usage_lines(
    rows: Sequence[Mapping[str, Any]], *, by: Sequence[str], groups: int, width: int
) -> Iterator[Text]:
    """Yield the lines of the table of `rows`, the first of `groups` in all.

    rows: columns `usage_schema(by)`. by: the columns that they are grouped by. width: cells of a line.
    """
    shown = "" if len(rows) == groups else f" (the {len(rows)} with most bytes of {count_text(groups)})"
    yield Text(f"usage by {' and '.join(_NAMES[key] for key in by)}{shown}", style="italic")
    yield Text()
    keys = by[::-1]  # of a client the client id first: it says more than a user who is ANONYMOUS
    names = [[fitted(name_text(row[key]), _LONGEST_NAME) for key in keys] for row in rows]
    table = [[*cells, *_measures(row)] for cells, row in zip(names, rows, strict=True)]
    header = [*(_NAMES[key] for key in keys), *_HEADERS]
    above = [*("" for _ in keys), *(_ABOVE.get(place, "") for place in range(len(_HEADERS)))]
    if _width([above, header, *table]) <= width:
        items = [[above, header], *([line] for line in table)]
        yield from _aligned(items, len(by), _widths([above, header, *table]))
        return
    folded = [_folded(line, len(by)) for line in (header, *table)]
    widths = _widths([line for lines in folded for line in lines])
    widths[0] = max(_SHORTEST_NAME, min(widths[0], width - sum(widths[1:]) - len(_GAP) * (len(widths) - 1)))
    yield from _aligned(folded, 1, widths)


def _measures(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of `_HEADERS`."""
    throttle_ms = sum(row[f"{kind}_throttle_ms"] for kind in ("produce", "fetch", "request", "mutation"))
    throttled = row["throttled_requests"]
    seconds = max(_LEAST_MS, row["last_ts_ms"] - row["first_ts_ms"]) / 1000
    return [
        count_text(row["requests"]),
        count_text(row["mutations"]),
        _or_nothing(bytes_text, row["request_bytes_p99"]),
        percent_text(throttled, row["requests"]) if throttled else "never",
        duration_text(throttle_ms) if throttle_ms else "–",
        _or_nothing(duration_text, row["throttle_ms_p99"]),
        bytes_text(row["produce_bytes"]),
        _rate_text(row["peak_produce_bytes_per_second"]),
        _rate_text(row["produce_bytes"] / seconds),
        bytes_text(row["fetch_bytes"]),
        _rate_text(row["peak_fetch_bytes_per_second"]),
        _rate_text(row["fetch_bytes"] / seconds),
        duration_text((row["handler_ns"] + row["network_ns"]) // _NS_PER_MS),
        _percent_text(row["peak_request_percent"]),
        _or_nothing(nanoseconds_text, row["handler_ns_p99"]),
    ]


def _rate_text(rate: float) -> str:
    """Return a rate in few characters: three digits tell it."""
    number, unit = bytes_text(rate).split()
    return f"{float(number):.0f} {unit}" if float(number) >= _THREE_DIGITS else f"{number} {unit}"


def _percent_text(percent: float) -> str:
    if percent > _MOST_PERCENT:
        return f">{_MOST_PERCENT}%"
    return f"{percent:.0f}%" if percent >= _THREE_DIGITS else f"{percent:.3g}%"


def _or_nothing(text: Callable[[int], str], value: int | None) -> str:
    return "–" if value is None else text(value)


def _folded(cells: Cells, names: int) -> list[list[str]]:
    """Return a line as several: measures below those that they belong to, the second name below the first."""
    measures = list(cells[names:])
    shown = (cells[0], f"  {cells[1]}" if names > 1 else "", "")
    return [[shown[place], *measures[place::_FOLDED]] for place in range(_FOLDED)]


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
