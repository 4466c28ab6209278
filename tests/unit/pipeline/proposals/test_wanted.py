"""The request for a proposal: what it accepts, and what it refuses."""

import numpy as np
import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline.proposals.wanted import Wanted


def test_numbers_and_pairs_may_come_from_elsewhere():
    """An integer of numpy is a number, and a pair in JSON is a list."""
    wanted = Wanted(budgets={"producer_byte_rate": np.int64(1000)}, protect=[["client-id", "x"]])
    assert (wanted.budgets, wanted.protect) == ({"producer_byte_rate": 1000.0}, [("client-id", "x")])
    assert type(wanted.budgets["producer_byte_rate"]) is float


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"budgets": {"producer_byte_rat": 1e3}}, "unknown key 'producer_byte_rat'", "'producer_byte_rate'?"),
        (
            {"budgets": {"connection_creation_rate": 1}},
            "unknown key 'connection_creation_rate'",
            "did you mean",
        ),
        ({"budgets": {1: 3}}, "unknown key 1", "expected one of producer_byte_rate"),
        (
            {"budgets": {"producer_byte_rate": float("nan")}},
            "producer_byte_rate in budgets must be finite",
            "",
        ),
        ({"budgets": {"producer_byte_rate": "100MiB"}}, "must be a number, got '100MiB'", ""),
        ({"budgets": {"producer_byte_rate": True}}, "must be a number, got True", ""),
        ({"budgets": {"request_percentage": 0}}, "must be greater than 0, got 0", ""),
        ({"budgets": 5}, "budgets must be a mapping", ""),
        ({"budgets": [("producer_byte_rate", 1e9)]}, "budgets must be a mapping", ""),
        ({"protect": [("users", "carol")]}, "unknown entity type 'users'", "'user'?"),
        ({"protect": [("client_id", "x")]}, "unknown entity type 'client_id'", "'client-id'?"),
        ({"protect": ("user", "carol")}, "protect must be pairs such as .* got 'user' among them", ""),
        ({"protect": "user=carol"}, "protect must be pairs such as .* got 'user=carol'", ""),
        ({"protect": {"user": "carol"}}, "protect must be pairs", ""),
        ({"protect": 3}, "protect must be pairs", ""),
        ({"protect": [("user", None)]}, "protect must be pairs", ""),
        ({"protect": [("user", "")]}, "the name of a user must not be empty", ""),
    ],
)
def test_a_wrong_request_is_refused(options, message, hint):
    """The error names the argument, and the word that was probably meant."""
    with pytest.raises(ConfigError, match=message) as raised:
        Wanted(**options)
    assert hint in (raised.value.hint or "")
