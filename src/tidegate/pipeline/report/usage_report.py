"""The usage summary as a table for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tidegate.pipeline.report.text import bytes_text, count_text, duration_text, name_text, percent_text

__all__ = ["usage_table"]

_NS_PER_MS = 1_000_000


def usage_table(rows: Sequence[Mapping[str, Any]], *, clients: int) -> Table:
    """Return the table of `rows` (columns `USAGE_BY_CLIENT`), the first of `clients` in all."""
    shown = "" if len(rows) == clients else f" (the {len(rows)} with most bytes of {count_text(clients)})"
    table = Table(title=f"usage by client{shown}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("user")
    table.add_column("client-id")
    for name in (
        "requests",
        "throttled",
        "produced",
        "peak/s",
        "fetched",
        "peak/s",
        "thread time",
        "mutations",
        "throttle",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Mapping[str, Any]) -> list[Text]:
    throttle_ms = sum(row[f"{kind}_throttle_ms"] for kind in ("produce", "fetch", "request", "mutation"))
    cells = [
        name_text(row["user"]),
        name_text(row["client_id"]),
        count_text(row["requests"]),
        percent_text(row["throttled_requests"], row["requests"]),
        bytes_text(row["produce_bytes"]),
        bytes_text(row["peak_produce_bytes_per_second"]),
        bytes_text(row["fetch_bytes"]),
        bytes_text(row["peak_fetch_bytes_per_second"]),
        duration_text((row["handler_ns"] + row["network_ns"]) // _NS_PER_MS),
        count_text(row["mutations"]),
        duration_text(throttle_ms),
    ]
    return [Text(cell) for cell in cells]
