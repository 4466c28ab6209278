"""The look at a usage record notices rows that are missing or twice, and files that are left."""

from pathlib import Path
from typing import Any

import pytest
from tests.kills.ledger import ViolationError
from tests.kills.record import check_record, check_tidy
from tests.replaying.files import write_events

TS_MS = 1_700_000_000_000


def events(*rows: tuple[str, int]) -> list[dict[str, Any]]:
    """Return events of node 1: their kind and number; requests are of client "c"."""
    own = {"request": {"client_id": "c"}}
    return [
        {"kind": kind, "seq": seq, "ts_ms": TS_MS, "node_id": 1} | own.get(kind, {}) for kind, seq in rows
    ]


RUNS = [("start", 10), ("request", 11), ("request", 12), ("start", 50), ("request", 51)]


def test_a_whole_record(tmp_path: Path) -> None:
    """Numbers jump where a node starts; a request on its way may be there or not."""
    write_events(tmp_path, events(*RUNS))
    for counted in ({"c": (3, 3)}, {"c": (2, 3)}, {}):
        assert check_record(tmp_path, counted, 2) == len(RUNS)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([("request", 13)], "node 1 has 1 rows twice"),
        ([("request", 15)], r"lacks rows in its usage record before \[15\]"),
        ([("start", 70), ("start", 80)], "has 4 starts in its usage record, expected 3 at most"),
        ([("gap", 52)], "has a gap"),
        ([("request", 14)], "has 5 requests of c, which was answered 4 and sent 4"),
    ],
)
def test_what_no_record_may_have(tmp_path: Path, rows: list[tuple[str, int]], problem: str) -> None:
    """It is said what and where."""
    for number, written in enumerate((RUNS, [("request", 13)], rows)):
        write_events(tmp_path / f"hour={number}", events(*written))
    with pytest.raises(ViolationError, match=problem):
        check_record(tmp_path, {"c": (4, 4)}, 3)


def test_a_request_that_was_answered_and_is_missing(tmp_path: Path) -> None:
    """Fewer rows than answers."""
    write_events(tmp_path, events(*RUNS))
    with pytest.raises(ViolationError, match="has 3 requests of c, which was answered 4 and sent 5"):
        check_record(tmp_path, {"c": (4, 5)}, 2)


@pytest.mark.parametrize("name", [".node-1.parquet.tmp", "1.closed", "1.bad"])
def test_files_that_are_left(tmp_path: Path, name: str) -> None:
    """Each is named."""
    check_tidy(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(ViolationError, match=f"1 files are left in the usage directory: {name}"):
        check_tidy(tmp_path)
