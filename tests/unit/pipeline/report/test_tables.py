"""Tables: declared columns, folded names, stacked columns, groups of rows."""

from rich.cells import cell_len

from tidegate.pipeline.report.tables import Column, Table, side_by_side, stacked, table_lines, table_width

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


def test_a_text_is_over_the_whole_width():
    """Between rows, shortened in the middle; the page does not show it."""
    row = {"name": "a", "count": 1}
    table = Table(caption="", columns=[_NAME, _COUNT], rows=[row, "", row, "x" * 99])
    assert _lines(table, width=20)[3:] == [
        "a               1",
        "",
        "a               1",
        "x" * 11 + "…" + "x" * 8,
    ]
    assert len(table.cells()) == 2


def test_columns_that_do_not_fit_follow_in_another_table():
    """Each table begins with the first column; names are folded, lines without a cell are left out."""
    names = ["recorded", "a-plan-with-a-long-name", "other"]
    lines = [["  delay", "1 s", "22 s", "3 s"], "all", ["  refused", "", "", "1,000,000,000"]]
    found = [
        line.plain for line in side_by_side("fetch", names, ["  loop", "", "open", "open"], lines, width=33)
    ]
    assert found == [
        "                   a-plan-wit",
        "                   h-a-long-n",
        "fetch    recorded         ame",
        "  loop                   open",
        "─────────────────────────────",
        "  delay       1 s        22 s",
        "all",
        "",
        "           recor",
        "fetch        ded          other",
        "  loop                     open",
        "───────────────────────────────",
        "  delay      1 s            3 s",
        "all",
        "  refused         1,000,000,000",
        "",
    ]
