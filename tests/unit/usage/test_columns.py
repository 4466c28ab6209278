"""The table of columns, and that document, schema and spool row follow it."""

from pathlib import Path

from tidegate.usage.arrow import arrow_schema
from tidegate.usage.columns import COLUMNS, FLAGS, KINDS, empty_event
from tidegate.usage.segment import IN_PLACE_OF, ROW_FIELDS

DOCUMENT = Path(__file__).parents[3] / "docs" / "usage-record.md"


def test_document_has_the_table():
    """The page that users read shows every column as the code has it."""
    lines = ["| column | type | in rows | description |", "|---|---|---|---|"]
    for column in COLUMNS:
        type_text = f"{column.type}, null" if column.nullable else column.type
        kinds = "all" if column.kinds == KINDS else ", ".join(column.kinds)
        lines.append(f"| `{column.name}` | {type_text} | {kinds} | {column.meaning} |")
    assert "\n".join(lines) in DOCUMENT.read_text()


def test_document_describes_every_kind():
    """Each kind of event has its line on the page."""
    text = DOCUMENT.read_text()
    assert [kind for kind in KINDS if f"| `{kind}` |" not in text] == []


def test_schema_has_the_columns():
    """Names, order, types and nullability of the Arrow schema are those of the table."""
    fields = [(field.name, str(field.type), field.nullable) for field in arrow_schema()]
    assert fields == [(column.name, column.type, column.nullable) for column in COLUMNS]


def test_spool_row_has_every_column():
    """What is not a number of the row is implied, a flag (as `produce_bytes` is), or a name."""
    in_row = {name for name, _ in ROW_FIELDS} | IN_PLACE_OF.keys()
    missing = [column.name for column in COLUMNS if column.name not in in_row and column.type != "string"]
    assert missing == ["seq", "node_id", "produce_bytes", *FLAGS]


def test_no_row_fills_a_place_twice():
    """A column in the place of another is never in a row with that."""
    kinds = {column.name: set(column.kinds) for column in COLUMNS}
    assert [name for name, place in IN_PLACE_OF.items() if kinds[name] & kinds[place]] == []


def test_kinds_of_columns_exist():
    """No column names a kind that does not exist."""
    assert {kind for column in COLUMNS for kind in column.kinds} == set(KINDS)


def test_empty_event():
    """A column that a kind does not fill is null where it may be, else zero, false or empty."""
    event = empty_event("start")
    assert list(event) == [column.name for column in COLUMNS]
    assert (event["kind"], event["user"], event["api_key"], event["strict"]) == ("start", "", 0, False)
    assert (event["quota_user"], event["fetch_bytes"]) == (None, None)
