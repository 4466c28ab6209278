"""A request that begins as an earlier one is found, with the values that follow; no other is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire import API_BY_KEY, decode_request_header, encode_request, read_request
from tidegate.wire.split_reader import split_reader

TOPIC_ID = "00000000-0000-0000-0000-000000000001"
PRODUCE, FETCH = 0, 1
READ = {
    PRODUCE: ("index", ("records",)),
    FETCH: ("partition", ("current_leader_epoch", "fetch_offset", "partition_max_bytes")),
}
PAIRS = [
    (key, version)
    for key in (PRODUCE, FETCH)
    for version in range(API_BY_KEY[key].min_version, API_BY_KEY[key].max_version + 1)
]


def produce(records=b"abc", topic="t", index=0, topics=1, partitions=1, **more):
    """Return a Produce request."""
    partition = {"index": index, "records": records}
    part = {"name": topic, "topic_id": TOPIC_ID, "partition_data": [partition] * partitions}
    return {"transactional_id": None, "acks": 1, "timeout_ms": 1, "topic_data": [part] * topics, **more}


def fetch(offset=7, epoch=0, max_bytes=100, topic="t", index=0, topics=1, partitions=1, **more):
    """Return a Fetch request."""
    partition = {
        "partition": index,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    part = {"topic": topic, "topic_id": TOPIC_ID, "partitions": [partition] * partitions}
    fixed = {"replica_id": -1, "max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0}
    session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    return {**fixed, **session, "topics": [part] * topics, **more}


def body(key, version, message, client_id="client"):
    """Return a frame without its length, and where its body begins."""
    frame = memoryview(encode_request(key, version, 5, client_id, message))[4:]
    return frame, decode_request_header(frame).body_at


def kept(key, version, message):
    """Return the reader, and what is kept after `message`."""
    reader = split_reader(key, version, *READ[key])
    return reader, {reader.prefix(*body(key, version, message)): "kept"}


@pytest.mark.parametrize(("key", "version"), PAIRS)
@given(
    numbers=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
    records=st.binary(max_size=300),
    topic=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
)
def test_what_follows_is_read(key, version, numbers, records, topic):
    """The values are those that the ordinary reader reads."""
    epoch, offset, max_bytes = numbers
    if key == PRODUCE:
        reader, known = kept(key, version, produce(b"before", topic))
        frame, at = body(key, version, produce(records, topic))
        assert reader.find(frame, at, known) == ("kept", records)
    else:
        reader, known = kept(key, version, fetch(topic=topic))
        frame, at = body(key, version, fetch(offset, epoch, max_bytes, topic))
        partition = read_request(key, version, frame, at)["topics"][0]["partitions"][0]
        epoch = partition.get("current_leader_epoch", -1)
        assert reader.find(frame, at, known) == ("kept", epoch, offset, max_bytes)


@pytest.mark.parametrize(("key", "version"), PAIRS)
@given(
    tail=st.binary(max_size=80),
    flips=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3),
)
def test_whatever_follows_is_read_as_the_ordinary_reader_does(key, version, tail, flips):
    """Of bytes that nobody meant, what is found is what the ordinary reader finds too."""
    make = produce if key == PRODUCE else fetch
    reader, known = kept(key, version, make())
    (prefix,) = known
    frame, at = body(key, version, make())
    rest = bytearray(frame[at + len(prefix) :])
    for place, byte in flips:
        rest[place % len(rest)] = byte
    for follows in (bytes(rest), tail):
        found = reader.find(memoryview(prefix + follows), 0, known)
        if found is not None:
            message = read_request(key, version, prefix + follows)
            (part,) = message["topic_data" if key == PRODUCE else "topics"]
            (partition,) = part["partition_data" if key == PRODUCE else "partitions"]
            assert found == ("kept", *(partition.get(name, -1) for name in READ[key][1]))


@pytest.mark.parametrize(("key", "version"), PAIRS)
def test_other_requests_are_not_found(key, version):
    """Another partition, more of them, other settings, tagged fields: the ordinary reader has to read those."""
    make = produce if key == PRODUCE else fetch
    reader, known = kept(key, version, make())
    others = [
        make(index=1),
        make(topics=2),
        make(partitions=2),
        make(topics=0),
        make(_unknown_tags={99: b"x"}),
    ]
    others += (
        [make(transactional_id="x"), make(acks=0)] if key == PRODUCE else [make(max_bytes=5, min_bytes=2)]
    )
    if key == FETCH and version >= 7:
        others += [
            make(session_epoch=0),
            make(forgotten_topics_data=[{"topic": "t", "topic_id": TOPIC_ID, "partitions": [1]}]),
        ]
    if key == FETCH and version >= 15:
        others.append(make(replica_state={"replica_id": 3, "replica_epoch": 1}))
    for other in others:
        frame, at = body(key, version, other)
        if "_unknown_tags" not in other or API_BY_KEY[key].is_flexible(version):
            assert reader.find(frame, at, known) is None, other


@pytest.mark.parametrize(("key", "version"), PAIRS)
def test_requests_of_another_shape_have_no_key(key, version):
    """Nothing is kept for them: what they begin with does not say where the rest begins."""
    make = produce if key == PRODUCE else fetch
    reader = split_reader(key, version, *READ[key])
    others = [make(topics=2), make(partitions=2), *([make(transactional_id="x")] if key == PRODUCE else [])]
    assert [reader.prefix(*body(key, version, other)) for other in others] == [b""] * len(others)


@pytest.mark.parametrize(("key", "version"), PAIRS)
def test_a_request_cut_short_is_not_found(key, version):
    """Every length but the whole one is left to the ordinary reader, which says what is wrong."""
    make = produce if key == PRODUCE else fetch
    reader, known = kept(key, version, make())
    frame, at = body(key, version, make())
    for end in range(at, len(frame)):
        assert reader.find(frame[:end], at, known) is None
    assert reader.find(frame, at, known) is not None


@pytest.mark.parametrize(("key", "version"), PAIRS)
@pytest.mark.parametrize("size", [126, 127, 128, 200, 249, 300])
def test_long_names_are_found_or_not_kept(key, version, size):
    """A name whose length takes more than one byte has no key; all others have one of their own for each partition."""
    make = produce if key == PRODUCE else fetch
    by_id = (key == PRODUCE and version >= 13) or (key == FETCH and version >= 13)
    flexible = API_BY_KEY[key].is_flexible(version)
    reader = split_reader(key, version, *READ[key])
    keys = {
        index: reader.prefix(*body(key, version, make(topic="t" * size, index=index))) for index in (0, 1)
    }
    if by_id or size < 127 or (not flexible and size < 256):
        assert all(keys.values())
        assert keys[0] != keys[1]
        frame, at = body(key, version, make(topic="t" * size, index=1))
        assert reader.find(frame, at, {keys[0]: 0, keys[1]: 1})[0] == 1
    else:
        assert keys == {0: b"", 1: b""}
