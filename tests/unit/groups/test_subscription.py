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


@pytest.mark.parametrize(
    "metadata",
    [
        f"0000 {TOPICS} 00000000",
        f"0000 {TOPICS} ffffffff",
        f"0001 {TOPICS} 00000002 6162 00000001 0001 74 00000002 00000000 00000001",
        f"0002 {TOPICS} 00000000 00000000 00000007",
        f"0003 {TOPICS} 00000000 00000000 00000007 ffff",
        f"0009 {TOPICS} 00000000 00000000 00000007 0001 72 99",
    ],
)
def test_versions(metadata: str) -> None:
    """A newer version is read as the newest that is known; cut anywhere it says nothing."""
    whole = bytes.fromhex(metadata)
    assert subscribed_topics(whole) == {"t", "u"}
    shortest = len(whole) - 1 - (whole[-1] == 0x99)
    assert all(subscribed_topics(whole[:length]) is None for length in range(shortest + 1))


def test_odd_bytes() -> None:
    """Whatever bytes there are, nothing else is raised and nothing is read for long."""
    rng = random.Random(7)
    for _ in range(2_000):
        subscribed_topics(rng.randbytes(rng.randrange(40)))
    assert subscribed_topics(bytes.fromhex("0000 7fffffff 0001 74")) is None
    assert subscribed_topics(bytes.fromhex("0000 00000001 0001 ff 00000000")) is None
    assert subscribed_topics(bytes.fromhex("ffff 00000000 00000000")) is None


def test_a_long_subscription_is_read_in_slices() -> None:
    """Nothing is kept of topics that there are not, and others have their turn every few hundred names."""
    names = b"".join(b"\0\6%06d" % number for number in range(20_000))
    metadata = struct.pack(">hi", 0, 20_000) + names + struct.pack(">i", -1)
    among = {"019999", "020000"}
    assert run_at_once(subscribed_topics_in_slices(metadata, among)) == {"019999"}
    assert sum(1 for _ in subscribed_topics_in_slices(metadata, among)) >= 20
    owned = struct.pack(">hiii", 1, 0, -1, 20_000) + (b"\0\0" + bytes(4)) * 20_000
    assert sum(1 for _ in subscribed_topics_in_slices(owned, ())) >= 20
