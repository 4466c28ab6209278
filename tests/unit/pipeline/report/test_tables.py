"""Tables: declared columns, folded names, stacked columns, groups of rows."""

from rich.cells import cell_len

from tidegate.pipeline.report.tables import Column, Table, stacked, table_lines, table_width

_NAME = Column("entity", "name", is_name=True)
_COUNT = Column("throttled\nrequests", "count", "{:,}".format)


def _lines(table, width=80):
    return [line.plain for line in table_lines(table, width=width)]


def test_a_column_has_a_key_and_a_format():
    """A key may be a function of the row; None is a dash."""
    table = Table(
        caption="what", columns=[_NAME, _COUNT, Column("twice", lambda row: row["count"] and 2 * row["count"])],
        rows=[{"name": "a", "count": 1234}, {"name": "bb", "count": None}],
    )  # fmt: skip
    assert table.cells() == [["a", "1,234", "2468"], ["bb", "–", "–"]]
    assert _lines(table) == [
        "what",
        "",
        "        throttled",
        "entity   requests  twice",
        "────────────────────────",
        "a           1,234   2468",
        "bb              –      –",
    ]
    assert table_width(table) == 24


def test_names_are_folded_and_numbers_are_not():
    """At blanks if possible, in terminal cells; no part of a name is lost."""
    name = "user=注文サービス client-id=" + "x" * 30
    table = Table(caption="", columns=[_NAME, _COUNT], rows=[{"name": name, "count": 10**15}])
    lines = _lines(table, width=42)
    assert max(map(cell_len, lines)) <= 42
    assert lines[3] == "user=注文サービス    1,000,000,000,000,000"
    assert "".join(line.partition("  ")[0] for line in lines[3:]) == name.replace(" ", "")


def test_stacked_columns_are_one_column():
    """Cells and the last lines of headings, below one another."""
    row = {"name": "a\nb", "count": 5}
    column = stacked([_COUNT, Column("peak", "count")])
    assert (column.heading, column.text(row)) == ("requests\npeak", "5\n5")
    assert _lines(Table(caption="", columns=[_NAME, column], rows=[row]))[-2:] == [
        "a              5",
        "b              5",
    ]


def test_groups_are_apart():
    """A blank line where the key of the group changes."""
    rows = [{"name": name, "count": 1} for name in "aab"]
    table = Table(caption="", columns=[_NAME, _COUNT], rows=rows, group="name")
    assert [line[:1] for line in _lines(table)[3:]] == ["a", "a", "", "b"]
