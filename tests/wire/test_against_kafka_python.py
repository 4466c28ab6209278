"""kafka-python as the second opinion: what we write it reads, value by value, and writes again to the same bytes.

It carries Kafka's own message files, and code of its own; our table was made from neither.
"""

import importlib
import pkgutil
import sys
import uuid

import kafka.protocol
import pytest
from hypothesis import given, settings
from kafka.protocol.api_message import ApiMessage
from tests.wire.messages import all_layouts, messages, title

from tidegate.wire import read_request, read_response, write_request, write_response
from tidegate.wire.definitions import layout

API_VERSIONS = 18

RENAMED = {
    "log_append_time_ms": "log_append_time",
    "expiry_timestamp_ms": "expiry_timestamp",
    "issue_timestamp_ms": "issue_timestamp",
    "transaction_start_time_ms": "transaction_start_time",
}
"""Kafka's names, where a point in time ends in `Ms`; durations alone do in ours."""

BITFIELDS = ("authorized_operations", "cluster_authorized_operations", "topic_authorized_operations")
"""Fields that kafka-python turns into sets of names; their bytes are compared, not their values."""


ABSENT = (
    None,
    "00000000-0000-0000-0000-000000000000",
    {"leader_id": -1, "leader_epoch": -1},
    {"epoch": -1, "end_offset": -1},
    {"end_offset": -1, "epoch": -1},
    {"replica_id": -1, "replica_epoch": -1},
)
"""Defaults of tagged fields, which kafka-python shows as None when they are absent."""


def load_classes():
    """Return kafka-python's message classes by (api key, direction)."""
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            importlib.import_module(module.name)
    modules = [module for name, module in sys.modules.items() if name.startswith("kafka.protocol.")]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    found = [c for c in classes if issubclass(c, ApiMessage) and c is not ApiMessage and c._json]
    return {(c.API_KEY, c.type): c[None] for c in found}


CLASSES = load_classes()
CASES = [case for case in all_layouts() if (case[0], case[2]) in CLASSES]


def values(ours, theirs, path=""):
    """Yield (path, our value, their value) of every leaf."""
    if theirs is None and ours in ABSENT:
        return
    if isinstance(ours, dict):
        for name, value in ours.items():
            if name != "_unknown_tags" and name not in BITFIELDS:
                yield from values(value, getattr(theirs, their_name(theirs, name)), f"{path}.{name}")
    elif isinstance(ours, list):
        yield f"{path}.length", len(ours), len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            yield from values(mine, other, f"{path}[]")
    elif isinstance(theirs, uuid.UUID):
        yield path, ours, str(theirs)
    else:
        yield path, bytes(ours) if isinstance(ours, memoryview) else ours, theirs


def their_name(theirs, name):
    """Return kafka-python's name of our field."""
    fields = theirs.fields
    return next((other for other in fields if other == name or RENAMED.get(other) == name), name)


def without_unknown_tags(message):
    """Return the message without tagged fields that nobody knows."""
    if isinstance(message, dict):
        return {
            name: without_unknown_tags(value) for name, value in message.items() if name != "_unknown_tags"
        }
    return [without_unknown_tags(value) for value in message] if isinstance(message, list) else message


@pytest.mark.parametrize("case", CASES, ids=title)
def test_kafka_python_agrees(case):
    """kafka-python reads the values that we wrote, and what it writes we read as the same message."""
    key, version, direction = case
    read, write = (read_request, write_request) if direction == "request" else (read_response, write_response)

    @settings(max_examples=3)
    @given(messages(*case))
    def agrees(drawn):
        message = without_unknown_tags(drawn)
        if case[0] == API_VERSIONS and direction == "response":
            message["error_code"] = 0  # any other makes kafka-python read version 0, for error 35's sake
        body = write(key, version, message)
        theirs = CLASSES[key, direction].decode(body, version=version)
        for path, ours, other in values(message, theirs):
            assert ours == other, path
        theirs.with_header()  # some of its requests cannot be written without
        assert read(key, version, theirs.encode()) == read(key, version, body)

    agrees()


def test_most_messages_have_a_second_opinion():
    """kafka-python has 52 of the APIs that are spoken."""
    assert len({case[0] for case in CASES}) == 52
    assert all(layout(*case) for case in CASES)
