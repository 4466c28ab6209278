"""What commands run in."""

import pytest


@pytest.fixture
def small_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write to a terminal of 80 columns, without colours."""
    for name, value in (("TTY_COMPATIBLE", "1"), ("TTY_INTERACTIVE", "0"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
