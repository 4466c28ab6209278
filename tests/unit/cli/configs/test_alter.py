"""Credentials that `tidegate configs --alter` sets; the rest is in `tests/e2e/test_configs.py`."""

import pytest

from tidegate.cli.configs.alter import read_credential
from tidegate.cli.configs.options import RefusedError
from tidegate.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "iterations", "password"),
    [
        ("password=x", 4096, "x"),
        ("iterations=-1,password=x", 4096, "x"),
        ("iterations=8192,password=a,b=c", 8192, "a,b=c"),
    ],
)
def test_credentials(text, iterations, password):
    """Iterations come first and can be left out; the password is all that follows."""
    found = read_credential("sam", "SCRAM-SHA-256", text)
    assert (found.iterations, found.password) == (iterations, password)


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("password", RefusedError, "Invalid credential property SCRAM_SHA_512=[hidden]"),
        ("iterations=,password=x", RefusedError, 'For input string: ""'),
        ("iterations=4095,password=x", RefusedError,
         "Iterations 4095 is less than the minimum 4096 required for SCRAM-SHA-512"),
        ("iterations=20000,password=x", ConfigError, "iterations must be at most 16384, got 20000"),
        ("password=", ConfigError, "password must not be empty"),
    ],
)  # fmt: skip
def test_credentials_that_are_refused(text, error, reason):
    """No password is in the reason, and no number of iterations keeps the command busy."""
    with pytest.raises(error) as refused:
        read_credential("sam", "SCRAM-SHA-512", text)
    assert str(refused.value) == reason
