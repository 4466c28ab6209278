"""Functions that are exchanged in the decision of a row."""

import inspect

import pytest

from tidegate.pipeline.replay.kernel import beyond_kafka
from tidegate.pipeline.replay.kernel.row_decision import EXCHANGED


@pytest.mark.parametrize("plain", EXCHANGED, ids=lambda function: function.__name__)
def test_each_exchanged_function_has_a_form_beyond_kafka(plain):
    """Exchanged by name, it takes the same arguments; one that is left out would follow Kafka's rules in silence."""
    other = getattr(beyond_kafka, plain.__name__)
    assert other is not plain
    assert list(inspect.signature(other).parameters) == list(inspect.signature(plain).parameters)
