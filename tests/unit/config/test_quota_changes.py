"""Differences between a cluster's quotas and a file's, and the file that takes changes back."""

import json
import math

import pytest

from tidegate.config.quota_changes import (
    MAX_UNDO_BYTES,
    QuotaChange,
    alterations,
    applied,
    conflicts,
    exported,
    load_undo,
    pending,
    quota_changes,
    undo_text,
    wanted_quotas,
)
from tidegate.config.quotas_file import MAX_ENTRIES, parse_quotas_file
from tidegate.config.quotas_text import dump_quotas_file
from tidegate.errors import ConfigError

ALICE, BOB, EVERYONE = (("user", "alice"),), (("user", "bob"),), (("client-id", None), ("user", None))
ADDRESS = (("ip", "192.0.2.7"),)


def test_the_file_owns_the_entities_that_it_names() -> None:
    """Its keys are set, keys that it leaves out are removed, other entities stay."""
    cluster = {
        ALICE: {"producer_byte_rate": 1.0, "request_percentage": 5.0},
        BOB: {"consumer_byte_rate": 2.0},
    }
    wanted = {
        ALICE: {"producer_byte_rate": 1.0, "consumer_byte_rate": 3.0},
        EVERYONE: {"request_percentage": 9.0},
    }
    changes = quota_changes(cluster, wanted)
    assert changes == [
        QuotaChange(EVERYONE, "request_percentage", None, 9.0),
        QuotaChange(ALICE, "consumer_byte_rate", None, 3.0),
        QuotaChange(ALICE, "request_percentage", 5.0, None),
    ]
    after = applied(cluster, changes)
    assert after == {**wanted, BOB: cluster[BOB]}
    assert quota_changes(after, wanted) == []
    assert applied(cluster, quota_changes(cluster, wanted, prunes=True)) == wanted
    assert applied(cluster, quota_changes(cluster, {}, prunes=True)) == {}


def test_an_entity_is_altered_once() -> None:
    """The broker refuses an entity that is in a request twice."""
    changes = quota_changes(
        {BOB: {"request_percentage": 1.0}}, {ALICE: {"producer_byte_rate": 1.0}}, prunes=True
    )
    found = [(each.entity, list(each.ops)) for each in alterations(changes)]
    assert found == [(ALICE, [("producer_byte_rate", 1.0)]), (BOB, [("request_percentage", None)])]


def test_values_that_another_client_changed_are_conflicts() -> None:
    """Also one that is gone, and one that was set where there was none. NaN is the same as NaN."""
    changes = [
        QuotaChange(ALICE, "producer_byte_rate", 1.0, 2.0),
        QuotaChange(ALICE, "request_percentage", 5.0, None),
        QuotaChange(BOB, "consumer_byte_rate", None, 7.5),
        QuotaChange(BOB, "request_percentage", math.nan, 1.0),
    ]
    before = {
        ALICE: {"producer_byte_rate": 1.0, "request_percentage": 5.0},
        BOB: {"request_percentage": math.nan},
    }
    assert conflicts(before, changes) == []
    after = {
        ALICE: {"producer_byte_rate": 1e7},
        BOB: {"consumer_byte_rate": 0.5, "request_percentage": math.nan},
    }
    assert conflicts(after, changes) == [
        "user='alice': producer_byte_rate is 10000000, expected 1",
        "user='alice': request_percentage is not set, expected 5",
        "user='bob': consumer_byte_rate is 0.5, expected not set",
    ]
    assert quota_changes(before, {BOB: {"request_percentage": math.nan}}) == []


def test_an_export_reads_back() -> None:
    """What no file can hold is named, and the rest is written."""
    cluster = {
        ALICE: {"producer_byte_rate": 4194304.0, "request_percentage": 0.1},
        ADDRESS: {"connection_creation_rate": 10.0},
        (("ip", "db.example"),): {"connection_creation_rate": 10.0},
        BOB: {"producer_byte_rate": 1235.0000001, "consumer_byte_rate": 1e15, "from_the_future": 1.0},
        EVERYONE: {"request_percentage": math.inf},
    }
    file, refused = exported(cluster)
    assert wanted_quotas(parse_quotas_file(dump_quotas_file(file))) == {
        ALICE: cluster[ALICE],
        ADDRESS: cluster[ADDRESS],
        BOB: {"consumer_byte_rate": 1e15},
    }
    assert [line.partition(" cannot be written: ")[0] for line in refused] == [
        "user=<default>, client-id=<default>: request_percentage inf",
        "user='bob': producer_byte_rate 1235.0000001",
        "user='bob': from_the_future 1.0",
        "ip='db.example': connection_creation_rate 10.0",
    ]


def test_an_export_beyond_the_bound_of_a_file_is_named() -> None:
    """`check` would refuse the file."""
    cluster = {(("user", str(number)),): {"request_percentage": 1.0} for number in range(MAX_ENTRIES + 1)}
    assert exported(cluster)[1] == ["100,001 entities have quotas, a file can hold 100,000"]


def test_changes_that_a_cluster_has_are_not_pending() -> None:
    """An apply that was interrupted has made some of the changes: only these are undone."""
    changes = [
        QuotaChange(ALICE, "producer_byte_rate", 2.0, None),
        QuotaChange(BOB, "request_percentage", 2.0, 1.0),
        QuotaChange(BOB, "consumer_byte_rate", 3.0, math.nan),
    ]
    cluster = {BOB: {"request_percentage": 2.0, "consumer_byte_rate": math.nan}}
    assert pending(cluster, changes) == [changes[1]]
    assert conflicts(cluster, pending(cluster, changes)) == []


def test_changes_that_could_not_be_undone_are_refused() -> None:
    """`undo` would refuse a file of that length."""
    long = QuotaChange((("user", "u" * 32_767),), "request_percentage", None, 1.0)
    with pytest.raises(ConfigError, match="too many changes to undo") as caught:
        undo_text([long] * (MAX_UNDO_BYTES // 32_767), cluster_id="abc")
    assert caught.value.hint == "apply fewer changes at once"


def test_an_undo_file_reverses_its_changes(tmp_path) -> None:
    changes = [
        QuotaChange(ALICE, "producer_byte_rate", None, 0.1),
        QuotaChange(EVERYONE, "request_percentage", 1e15, None),
    ]
    path = tmp_path / "undo.json"
    path.write_text(undo_text(changes, cluster_id="abc"))
    assert load_undo(path) == (
        "abc",
        [change._replace(before=change.after, after=change.before) for change in changes],
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"format": 2, "command": "quotas undo", "cluster_id": null, "changes": []}',
        '{"format": 1, "command": "replay", "cluster_id": null, "changes": []}',
        '{"format": 1, "command": "quotas undo", "cluster_id": null, "changes": [1]}',
        '{"format": 1, "command": "quotas undo", "cluster_id": null, "changes": [{"entity": {"user": 1}}]}',
        '{"format": 1, "command": "quotas undo", "cluster_id": null, "changes": '
        '[{"entity": {"user": "a"}, "key": "producer_byte_rate", "before": "x", "after": null}]}',
        "[" * 100_000,
        "\udc80",
    ],
)
def test_other_files_are_refused(tmp_path, text) -> None:
    path = tmp_path / "undo.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match="is not a file of changes to undo") as caught:
        load_undo(path)
    assert "tidegate quotas apply" in caught.value.hint


def test_a_file_without_end_is_not_read(tmp_path) -> None:
    path = tmp_path / "undo.json"
    path.write_text(json.dumps("x" * MAX_UNDO_BYTES))
    with pytest.raises(ConfigError, match="is longer than"):
        load_undo(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_undo(tmp_path / "none")
