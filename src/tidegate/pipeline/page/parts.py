"""The parts of a report: sections of sentences, tables, and charts with a table behind each.

All texts are plain: `html` escapes them. A job adds to the report by returning one more `Section`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Chart", "Column", "Section", "Table"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers stand to the right."""

    name: str
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells, the first of each its head. `caption` names the table where nothing else does."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture, what it says in a sentence, and the same in numbers.

    spec: Vega-Lite without `$schema` and `config`, which are the page's.
    is_open: the table shows at once, and is printed.
    """

    title: str
    description: str
    spec: Mapping[str, Any]
    table: Table
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of the report. `anchor` is unique among the sections: letters and `-`."""

    anchor: str
    title: str
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
