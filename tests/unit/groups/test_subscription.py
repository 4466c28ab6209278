"""Tests of reading subscriptions: every version, and whatever else may stand there."""

import random
import struct

import pytest

from tidegate.groups.subscription import subscribed_topics_in_slices
from tidegate.in_slices import run_at_once

TOPICS = "00000002 0001 74 0001 75"


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """Return the topics of a subscription that are `t` or `u`."""
    return run_at_once(subscribed_topics_in_slices(metadata, {"t", "u"}))


@pytest.mark.parametrize("version", ["0000", "0001", "0003", "7fff", "ffff"])
@pytest.mark.parametrize(
    "further", ["", "00000001 0001 74 00000002 00000000 00000001", "00000005", "00000000 00000007 ffff", "99"]
)
@pytest.mark.parametrize("user_data", ["00000000", "ffffffff", "fffffffe", "00000002 6162"])
def test_versions(version: str, user_data: str, further: str) -> None:
    """Of any version the fields of version 0 are read, whatever follows; cut before their end it says nothing.

    As recorded from Apache Kafka 4.3.1: @platformatic/kafka says version 1 and leaves out the owned partitions.
    """
    first = bytes.fromhex(f"{version} {TOPICS} {user_data}")
    assert subscribed_topics(first + bytes.fromhex(further)) == {"t", "u"}
    assert all(subscribed_topics(first[:length]) is None for length in range(len(first)))


def test_odd_bytes() -> None:
    """Whatever bytes there are, nothing else is raised and nothing is read for long."""
    rng = random.Random(7)
    for _ in range(2_000):
        subscribed_topics(rng.randbytes(rng.randrange(40)))
    assert subscribed_topics(bytes.fromhex("0000 7fffffff 0001 74")) is None
    assert subscribed_topics(bytes.fromhex("0000 00000001 0001 ff 00000000")) == set()
    assert subscribed_topics(bytes.fromhex("0000 ffffffff 00000000")) is None


def test_a_long_subscription_is_read_in_slices() -> None:
    """Nothing is kept of topics that there are not, and others have their turn every few hundred names."""
    names = b"".join(b"\0\6%06d" % number for number in range(20_000))
    metadata = struct.pack(">hi", 0, 20_000) + names + struct.pack(">i", -1)
    among = {"019999", "020000"}
    assert run_at_once(subscribed_topics_in_slices(metadata, among)) == {"019999"}
    assert sum(1 for _ in subscribed_topics_in_slices(metadata, among)) >= 20
