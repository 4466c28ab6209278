"""Errors of the client: one line each, from a broker's code and text."""

import pytest

from tidegate.client import BrokerError, ThrottlingQuotaExceededError
from tidegate.client.errors import MAX_SHOWN_CHARACTERS, raise_for, shown


@pytest.mark.parametrize(
    ("code", "text", "line"),
    [
        (89, None, "THROTTLING_QUOTA_EXCEEDED"),
        (89, "not now", "not now (THROTTLING_QUOTA_EXCEEDED)"),
        (31, None, "Cluster authorization failed. (CLUSTER_AUTHORIZATION_FAILED)"),
        (3000, None, "error 3000"),
        (-1, "a\nb\x1b]0;x\x07", "a b ]0;x  (UNKNOWN_SERVER_ERROR)"),
    ],
)
def test_code_and_text_make_one_line(code, text, line):
    """The broker's text, else that of the code, and its name."""
    assert str(BrokerError(code, text)) == line


def test_a_long_text_is_cut():
    """Texts are bounded."""
    assert len(shown("x" * 10**6)) == MAX_SHOWN_CHARACTERS + 1


def test_no_error_is_not_raised():
    """Code 0 is success."""
    raise_for(0, "ignored")
    with pytest.raises(BrokerError):
        raise_for(42, None)


def test_error_89_has_its_throttle_time():
    """The time to wait is an attribute."""
    assert ThrottlingQuotaExceededError(7).throttle_time_ms == 7
