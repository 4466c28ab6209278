"""The report as one HTML file that loads nothing: its parts, their HTML, and the file.

The policy (`Content-Security-Policy`) allows the scripts and the style in the file, by their hashes, and nothing else:
no network, no forms, no code made of texts. The texts of sections, tables and charts are plain: all of them go through
`escape` or, in the charts' data, through `_script_json`.
"""

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.report.tables import Table

__all__ = ["BUNDLE_SHA256", "Chart", "Section", "check_page", "report_html", "write_page"]

_UNFOLDED_ROWS = 10
"""Rows of a table that are shown without a click."""
_FEW_MORE_ROWS = 2  # are not worth a click
_ESCAPES = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&"})
BUNDLE_SHA256 = "e67dc928976e3ae2d50eb74d1de8d99651409236f10a1168c61fe652a4cca20e"
"""Checksum of `vega.js`, as `scripts/report-bundle.sh` makes it."""

_CONFIG = {
    "background": None,
    "aria": False,  # the figure around it has a description
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domainColor": "var(--line)",
        "gridColor": "var(--grid)",
        "labelColor": "var(--text)",
        "labelFontSize": 12,
        "labelOverlap": True,
        "tickColor": "var(--line)",
        "titleColor": "var(--text)",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "text": {"color": "var(--text)", "fontSize": 12},
}
"""The style of all charts. They use the colours of `page.css`, and change with the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture, what it shows in a sentence, and the same as a table.

    spec: Vega-Lite without `$schema` and `config`, which are the page's.
    is_open: the table is shown without a click, and printed.
    """

    title: str
    description: str
    spec: Mapping[str, Any]
    table: Table
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report. `anchor` is unique among the sections: letters and `-`."""

    anchor: str
    title: str
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


def report_html(
    *, title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section], made_by: str
) -> str:
    """Return the whole page. facts: the extent of the record, by name."""
    style, bundle, script = (
        files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "vega.js", "page.js")
    )
    specs = [{**chart.spec, "config": _CONFIG} for section in sections for chart in section.charts]
    numbers = iter(range(len(specs)))
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy([bundle, script], [style])}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#content">Skip to the report</a>',
            *_head(title, facts, sections),
            '<main id="content" tabindex="-1">',
            *(line for section in sections for line in _section(section, numbers)),
            "</main>",
            f"<footer><p>{escape(made_by)}</p></footer>",
            f'<script type="application/json" id="specs">{_script_json(specs)}</script>',
            f"<script>{bundle}</script>",
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(map(_hash, scripts)),
        "style-src": " ".join(map(_hash, styles)),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _script_json(value: Any) -> str:
    """Return JSON for a script element: nothing in it ends the element or begins another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def _head(title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section]) -> Iterator[str]:
    yield f"<header><h1>{escape(title)}</h1><dl>"
    for name, fact in facts:
        yield f"<div><dt>{escape(name)}</dt><dd><bdi>{escape(fact)}</bdi></dd></div>"
    yield "</dl></header>"
    yield '<nav aria-label="Sections"><ul>'
    for section in sections:
        yield f'<li><a href="#{section.anchor}"><bdi>{escape(section.title)}</bdi></a></li>'
    yield "</ul></nav>"


def _section(section: Section, numbers: Iterator[int]) -> Iterator[str]:
    yield f'<section id="{section.anchor}" aria-labelledby="{section.anchor}-title">'
    yield f'<h2 id="{section.anchor}-title"><bdi>{escape(section.title)}</bdi></h2>'
    for sentence in section.sentences:
        yield f"<p>{escape(sentence)}</p>"
    for chart in section.charts:
        yield from _figure(chart, next(numbers))
    for table in section.tables:
        yield from _table(table)
    yield "</section>"


def _figure(chart: Chart, number: int) -> Iterator[str]:
    description = f"{chart.title}. {chart.description}"
    yield f"<figure><figcaption><strong><bdi>{escape(chart.title)}</bdi></strong> "
    yield f"{escape(chart.description)}</figcaption>"
    yield f'<div class="chart" data-chart="{number}" role="img" aria-label="{escape(description)}"></div>'
    yield f"<details{' open' if chart.is_open else ''}><summary>The same as a table</summary>"
    yield from _table(chart.table)
    yield "</details></figure>"


def _table(table: Table) -> Iterator[str]:
    """Yield a table. Rows after the first ones are in a table of their own, which opens with a click."""
    if len(table.rows) <= _UNFOLDED_ROWS + _FEW_MORE_ROWS:
        yield from _unfolded(table)
        return
    yield from _unfolded(replace(table, rows=table.rows[:_UNFOLDED_ROWS]))
    rest = replace(table, caption=f"{table.caption}, continued", rows=table.rows[_UNFOLDED_ROWS:])
    yield f'<details class="more"><summary>{len(rest.rows)} more rows</summary>'
    yield from _unfolded(rest)
    yield "</details>"


def _unfolded(table: Table) -> Iterator[str]:
    caption = escape(table.caption)
    yield f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}"><table>'
    yield f"<caption>{caption}</caption><thead><tr>"
    classes = ["" if column.is_name else ' class="number"' for column in table.columns]
    for column, kind in zip(table.columns, classes, strict=True):
        yield f'<th scope="col"{kind}>{_on_a_line(column.heading)}</th>'
    yield "</tr></thead><tbody>"
    labels = [f' data-label="{_on_a_line(column.heading)}"' for column in table.columns]
    for first, *others in table.cells():
        cells = (
            f"<td{kind}{label}>{_on_a_line(cell)}</td>"
            if kind
            else f"<td{label}><bdi>{_on_a_line(cell)}</bdi></td>"
            for cell, kind, label in zip(others, classes[1:], labels[1:], strict=True)
        )
        yield f'<tr><th scope="row"><bdi>{_on_a_line(first)}</bdi></th>{"".join(cells)}</tr>'
    yield "</tbody></table></div>"


def _on_a_line(text: str) -> str:
    return escape(text.replace("\n", " "))


# --- the file ---------------------------------------------------------------------------------------------------------


def check_page(path: Path, *, overwrite: bool) -> None:
    """Raise `OutputError` if a page cannot be written to `path`."""
    if os.path.isdir(path):  # unlike `Path.is_dir`, also for a path that is too long
        raise OutputError(f"{str(path)!r} is a directory", hint="give the name of a file")
    if not overwrite and os.path.lexists(path):
        raise OutputError(f"{str(path)!r} already exists", hint="give another name, or --overwrite")
    if not os.path.isdir(path.parent):
        raise OutputError(
            f"cannot write to {str(path)!r}: directory {str(path.parent)!r} does not exist",
            hint="create it, or give another name",
        )


def write_page(path: Path, text: str, *, overwrite: bool) -> None:
    """Write the page with mode 0600, completely or not at all. Raises `OutputError`."""
    check_page(path, overwrite=overwrite)
    new = None
    try:
        descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        with open(descriptor, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(new, path)
        else:
            os.link(new, path)  # fails if another process has created it
    except FileExistsError:
        raise OutputError(f"{str(path)!r} already exists", hint="give another name, or --overwrite") from None
    except OSError as error:
        raise OutputError(
            f"cannot write to {str(path)!r}: {error.strerror or error}",
            hint="give --out a file in another directory",
        ) from error
    finally:
        if new is not None:
            Path(new).unlink(missing_ok=True)
