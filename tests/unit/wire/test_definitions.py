"""The table of definitions is what its sources say, and is taken apart by version."""

import json
from pathlib import Path

import pytest
from scripts.make_codecs import table_text

from tidegate.api_keys import JOIN_GROUP, OFFSET_FETCH, PRODUCE
from tidegate.wire.apis import API_BY_KEY
from tidegate.wire.definitions import REQUIRED, field_since, layout, minimum_size, minimum_struct_size, table

FACTS = json.loads((Path(__file__).parents[2] / "vectors" / "api-versions.json").read_text())["apis"]
TABLE = Path(__file__).parents[3] / "src" / "tidegate" / "wire" / "definitions.json"


def test_table_is_what_make_codecs_writes():
    """The table in the source tree is the one that its sources give (`make codecs` writes it anew)."""
    assert TABLE.read_text() == table_text()


def test_table_covers_every_version():
    """Each of the 278 (API, version) pairs, the unstable one included, has fields in both directions."""
    pairs = [
        (api["key"], version)
        for api in table()["apis"]
        for version in range(api["min_version"], api["max_version"] + 1)
    ]
    assert len(pairs) == 278
    assert all(layout(*pair, way).name for pair in pairs for way in ("request", "response"))


def test_layout_is_that_of_one_version():
    """A field that came with a later version is not in an earlier one, and one that went is not in a later."""
    names = {
        version: [field.name for field in layout(3, version, "response").fields] for version in (0, 3, 8, 13)
    }
    assert names == {
        0: ["brokers", "topics"],
        3: ["throttle_time_ms", "brokers", "cluster_id", "controller_id", "topics"],
        8: [*names[3], "cluster_authorized_operations"],
        13: [*names[3], "error_code"],
    }
    assert str(layout(3, 13, "response")) == "Metadata response v13"


@pytest.mark.parametrize(
    ("message", "nullable", "since"),
    [
        ((PRODUCE, "request", "acks"), False, 0),
        ((PRODUCE, "response", "log_start_offset"), False, 5),
        ((OFFSET_FETCH, "request", "topics"), False, 1),
        ((JOIN_GROUP, "response", "protocol_name"), False, 0),
        ((JOIN_GROUP, "response", "protocol_name"), True, 7),
    ],
)
def test_first_version_of_a_field(message, nullable, since):
    """The least over all lines of the table, those of inner structures too."""
    assert field_since(*message, nullable=nullable) == since


def test_a_field_that_no_version_has_is_a_key_error():
    """A misspelt field, and one that is never null."""
    for name, nullable in (("topic_ids", False), ("acks", True)):
        with pytest.raises(KeyError):
            field_since(PRODUCE, "request", name, nullable=nullable)


def test_unknown_messages_are_key_errors():
    """There is no layout of an API or version that the table lacks."""
    for pair in ((4, 0), (0, 2), (0, 14), (9999, 0)):
        with pytest.raises(KeyError):
            layout(*pair, "request")


def test_throttle_time_stands_where_kafka_has_it():
    """In the newest version of each API the throttle time is the field that Kafka's classes say."""
    for facts in FACTS:
        if facts["key"] not in API_BY_KEY:
            continue
        names = [
            field.name
            for field in layout(facts["key"], facts["max_version"], "response").fields
            if field.tag is None
        ]
        index = facts["throttle_time_ms_index_in_newest"]
        assert (names.index("throttle_time_ms") if "throttle_time_ms" in names else None) == index, facts[
            "name"
        ]


def test_defaults():
    """A field has Kafka's default, the throttle time 0, a tagged structure its fields' defaults, others none."""
    fields = {field.name: field for field in layout(1, 17, "request").fields}
    assert fields["replica_state"].default == {"replica_id": -1, "replica_epoch": -1}
    assert fields["max_bytes"].default == 2**31 - 1
    assert fields["max_wait_ms"].default is REQUIRED
    assert repr(REQUIRED) == "REQUIRED"
    assert {field.name: field.default for field in layout(12, 1, "response").fields} == {
        "throttle_time_ms": 0,
        "error_code": REQUIRED,
    }


@pytest.mark.parametrize(
    ("api_key", "version", "direction", "size"),
    [
        (12, 4, "response", 4 + 2 + 1),  # throttle time, error code, tags
        (12, 1, "response", 4 + 2),
        (18, 0, "request", 0),
        (0, 3, "request", 2 + 2 + 4 + 4),  # null transactional id, acks, timeout, no topics
        (0, 9, "request", 1 + 2 + 4 + 1 + 1),
    ],
)
def test_minimum_sizes(api_key, version, direction, size):
    """The least size of a message counts every field at its shortest."""
    found = layout(api_key, version, direction)
    assert minimum_struct_size(found.fields, flexible=found.flexible) == size


def test_minimum_size_of_a_nullable_struct_is_its_mark():
    """A structure that may be null takes one byte when it is."""
    (assignment,) = [field for field in layout(68, 0, "response").fields if field.name == "assignment"]
    assert assignment.nullable
    assert minimum_size(assignment, flexible=True) == 1
