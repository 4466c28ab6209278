"""Tests of groups and positions as bytes: whatever is encoded is decoded, and other bytes are refused."""

import dataclasses
import random
import struct

import pytest
from tests.unit.storage.positions import OFFSET, packed
from tests.unit.storage.test_group_rows import GROUP, MEMBER

from tidegate.groups import StoredGroup
from tidegate.storage.groups.committed_offsets import Partitions
from tidegate.storage.groups.group_records import (
    JournaledPositions,
    decode_record,
    encode_group,
    encode_positions,
)


@pytest.mark.parametrize(
    "group",
    [
        GROUP,
        dataclasses.replace(GROUP, members=(), protocol=None, leader_id=None, owner="User:ü"),
        dataclasses.replace(
            GROUP, members=(MEMBER._replace(owner="User:a"), MEMBER._replace(owner="User:b"))
        ),
    ],
    ids=["members", "empty", "owners"],
)
def test_groups(group: StoredGroup) -> None:
    """All fields come back, those of each member too."""
    assert decode_record(encode_group(group)) == group


@pytest.mark.parametrize("seed", range(5))
def test_positions(seed: int) -> None:
    """Any partitions, values and metadata come back, by topic id."""
    chosen = random.Random(seed)
    positions: dict[str, Partitions] = {
        f"t{topic}": {
            chosen.randrange(2**31): packed(
                OFFSET._replace(
                    offset=chosen.randrange(-1, 2**63),
                    metadata="ü" * chosen.choice((0, 0, 5000)),
                    expire_ms=chosen.choice((None, 0)),
                )
            )
            for _ in range(chosen.randrange(1, 200))
        }
        for topic in range(chosen.randrange(1, 4))
    }
    owner = chosen.choice((None, "", "User:ü"))
    record = encode_positions("g-ü", positions, {topic: f"id-{topic}" for topic in positions}, owner)
    by_id = {f"id-{topic}": part for topic, part in positions.items()}
    assert decode_record(record) == JournaledPositions(group_id="g-ü", positions=by_id, owner=owner)


def test_other_bytes_are_refused() -> None:
    """Cut records and unknown kinds raise what `decode_record` names, and nothing else."""
    records = [encode_group(GROUP), encode_positions("g", {"t": {1: packed(OFFSET)}}, {"t": "id"}, "User:a")]
    for record in records:
        for end in range(0, min(len(record), 400)):
            try:
                decode_record(record[:end])
            except (struct.error, ValueError, KeyError, TypeError):
                continue
    with pytest.raises(ValueError, match="kind must be 1 or 2, got 9"):
        decode_record(b"\x09" + records[0][1:])
