"""JSON log lines: one object a line, whatever is in them."""

import json
import logging
import sys

from tidegate.log_format import JSON, TEXT, formatter


def record(message: str, *, exception: bool = False, **fields: object) -> logging.LogRecord:
    """Return a record of the audit log."""
    info = None
    if exception:
        try:
            raise ValueError("why")
        except ValueError:
            info = sys.exc_info()
    made = logging.LogRecord("tidegate.audit", logging.INFO, "", 0, "%s", (message,), info)
    if fields:
        vars(made)["audit"] = fields
    return made


def test_each_line_is_one_object() -> None:
    """Line breaks, quotes and characters outside Unicode are escaped; fields of an audit line are beside it."""
    line = formatter(JSON).format(record('a"\n\u2028\ud800', key="k", old=None, new=2.0))
    assert line.isascii()
    assert "\n" not in line
    found = json.loads(line)
    assert found.pop("ts").endswith("Z")
    assert found == {
        "level": "INFO",
        "logger": "tidegate.audit",
        "message": 'a"\n\u2028\ud800',
        "key": "k",
        "old": None,
        "new": 2.0,
    }


def test_a_quota_may_be_no_number() -> None:
    """JSON has no NaN, so it is a text."""
    line = formatter(JSON).format(record("m", new=float("nan"), old=float("inf")))
    found = json.loads(line, parse_constant=lambda name: [name])
    assert (found["new"], found["old"]) == ("nan", "inf")


def test_a_traceback_is_a_field() -> None:
    """It is no line of its own."""
    line = formatter(JSON).format(record("failed", exception=True))
    assert json.loads(line)["exception"].endswith("ValueError: why")
    assert "\n" not in line


def test_text_is_as_before() -> None:
    """A line of text has time, level and message."""
    assert formatter(TEXT).format(record("m", key="k")).endswith(" INFO m")
    assert formatter(TEXT, "usage: %(message)s").format(record("m")) == "usage: m"
