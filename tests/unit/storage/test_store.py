"""Tests of the SQLite store."""

import math
import resource
import shutil
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.storage.positions import commit, stored_offsets

from tidegate.acl import Acl
from tidegate.in_slices import run_at_once
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.storage.errors import StorageError
from tidegate.storage.groups.committed_offsets import CommittedOffset
from tidegate.storage.groups.group_rows import GroupChange
from tidegate.storage.metadata.store import MetadataStore, StoredTopic

ALICE = (("user", "alice"),)
DEFAULTS = (("client-id", None), ("user", None))


Opened = Callable[[Path], MetadataStore]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Return a function that opens a store; all are closed in the end."""
    stores: list[MetadataStore] = []

    def open_store(path: Path) -> MetadataStore:
        stores.append(MetadataStore(path))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the store lies."""
    return tmp_path / "tidegate.db"


def killed(path: Path) -> Path:
    """Return a copy of the file as the death of the process would leave it."""
    copy = path.parent / "copy"
    copy.mkdir()
    for file in path.parent.glob("tidegate.db*"):
        shutil.copy(file, copy / file.name)
    return copy / path.name


def test_quotas_survive_a_kill(opened: Opened, path: Path) -> None:
    """Definitions are there as soon as the call has returned."""
    store = opened(path)
    records = [
        QuotaRecord(entity=ALICE, key="producer_byte_rate", value=1024.5),
        QuotaRecord(entity=DEFAULTS, key="request_percentage", value=200.0),
    ]
    run_at_once(store.apply_quota_records_in_slices(records))
    assert sorted(opened(killed(path)).load_quotas(), key=lambda record: record.key) == records


@pytest.mark.parametrize("value", [0.1 + 0.2, -0.0, 5e-324, float(2**63), math.inf, math.nan, 1e22 / 3])
def test_values_keep_every_bit(opened: Opened, path: Path, value: float) -> None:
    """A quota's value comes back as the same double."""
    run_at_once(opened(path).apply_quota_records_in_slices([QuotaRecord(entity=ALICE, key="k", value=value)]))
    (record,) = opened(path).load_quotas()
    assert record.value is not None
    assert struct.pack(">d", record.value) == struct.pack(">d", value)


def test_no_change_does_a_checkpoint(opened: Opened, path: Path) -> None:
    """Changes of the loop are moved into the database by the writer's thread alone; the log begins anew after it."""
    store = opened(path)
    for connection in (store._connection, store._writer):
        assert connection.db.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    for number in range(1500):
        store.put_topic(StoredTopic(topic_id=f"id-{number}", name=f"{number}" * 500, partitions=1))
    before = path.stat().st_size
    assert store.recent_bytes() > 4 << 20 > before
    store.checkpoint(1 << 30)
    assert path.stat().st_size == before, "there is not that much"
    store.checkpoint()
    assert path.stat().st_size > before
    store.put_topic(StoredTopic(topic_id="id", name="last", partitions=1))
    assert store.recent_bytes() <= 4 << 20


def test_the_file_becomes_smaller(opened: Opened, path: Path) -> None:
    """What deletions leave free is given back a part at a time."""
    store = opened(path)
    many = [offset("orders")._replace(partition=part, metadata="m" * 4096) for part in range(2000)]
    store.groups.apply([commit(*many)])
    store.checkpoint()
    full = path.stat().st_size
    store.groups.apply([GroupChange(forgotten=many)])
    for _ in range(20):
        store.shrink()
    store.checkpoint()
    assert path.stat().st_size < 5_000_000 < 8_000_000 < full


def test_loop_and_writer_change_it_at_once(opened: Opened, path: Path) -> None:
    """Neither finds it busy, and what both have changed is there after a kill."""
    store = opened(path)
    positions = [offset("orders")._replace(partition=part) for part in range(300)]

    def write() -> None:
        for at in positions:
            store.written_groups.apply([commit(at)])

    thread = threading.Thread(target=write)
    thread.start()
    for number in range(300):
        store.set_meta("n", str(number))
    thread.join()
    again = opened(killed(path))
    assert (again.meta("n"), stored_offsets(again, "g")) == ("299", positions)


def test_removal_removes(opened: Opened, path: Path) -> None:
    """A record without a value deletes its definition and no other."""
    store = opened(path)
    run_at_once(
        store.apply_quota_records_in_slices(
            [QuotaRecord(entity=ALICE, key=key, value=1.0) for key in ("a", "b")]
        )
    )
    run_at_once(store.apply_quota_records_in_slices([QuotaRecord(entity=ALICE, key="a", value=None)]))
    assert [record.key for record in store.load_quotas()] == ["b"]


def test_records_are_stored_together_or_not_at_all(opened: Opened, path: Path) -> None:
    """When one record cannot be stored none is."""
    store = opened(path)
    good = QuotaRecord(entity=ALICE, key="a", value=1.0)
    bad = QuotaRecord(entity=ALICE, key="\ud800", value=1.0)
    with pytest.raises(UnicodeEncodeError):
        run_at_once(store.apply_quota_records_in_slices([good, bad]))
    assert list(store.load_quotas()) == []


def test_topics_come_back(opened: Opened, path: Path) -> None:
    """A topic keeps id, partitions and settings; putting it again replaces it."""
    store = opened(path)
    topic = StoredTopic(topic_id="id-1", name="orders", partitions=3, configs={"retention.ms": "5"})
    store.put_topic(topic)
    grown = StoredTopic(topic_id="id-1", name="orders", partitions=7, configs={"retention.ms": "5"})
    store.put_topic(grown)
    assert list(opened(killed(path)).topics()) == [grown]


def test_owners_of_partitions_come_back(opened: Opened, path: Path) -> None:
    """They are replaced with the topic and go with it; a topic without one for all is a principal of its own."""
    store = opened(path)
    topic = StoredTopic(topic_id="id-1", name="orders", partitions=3, owners={"User:a": 1, "User:b": 2})
    store.put_topic(StoredTopic(topic_id="id-1", name="orders", partitions=2, owners={"User:c": 2}))
    store.put_topic(topic)
    store.put_topic(StoredTopic(topic_id="id-2", name="other", partitions=1))
    store.put_topic(StoredTopic(topic_id="id-3", name="own", partitions=2, owners={"User:c": 2}))
    store.put_topic(StoredTopic(topic_id="id-4", name="part", partitions=2, owners={"User:c": 1}))
    found = list(opened(killed(path)).topics())
    assert [(each.owners, each.principal) for each in found] == [
        (topic.owners, "Topic:orders"),
        ({}, "Topic:other"),
        ({"User:c": 2}, "User:c"),
        ({"User:c": 1}, "Topic:part"),
    ]
    store.delete_topic(topic)
    store.put_topic(StoredTopic(topic_id="id-1", name="orders", partitions=1))
    assert [each.owners for each in store.topics() if each.topic_id in ("id-1", "id-2")] == [{}, {}]


def test_deleted_topic_is_remembered_until_its_files_are_gone(opened: Opened, path: Path) -> None:
    """Deleting leaves a note for a restart, and lets the offsets be forgotten, a few at a time."""
    store = opened(path)
    topic = StoredTopic(topic_id="id-1", name="orders", partitions=3)
    store.put_topic(topic)
    store.groups.apply([commit(offset("orders"), offset("other"))])
    assert not store.groups.forget_topic("orders")
    store.delete_topic(topic)
    assert [store.groups.forget_topic("orders") for _ in range(2)] == [True, False]
    assert list(store.topics()) == []
    assert list(store.deleted_topics()) == [topic]
    assert stored_offsets(store, "g") == [offset("other")]
    store.forget_deleted_topic("id-1")
    assert list(store.deleted_topics()) == []


def offset(topic: str) -> CommittedOffset:
    """Return a committed offset of group g in partition 1."""
    return CommittedOffset(
        group_id="g", topic=topic, partition=1, offset=5, leader_epoch=0, metadata="m", commit_ms=7
    )


def test_producer_ids_are_never_given_out_twice(opened: Opened, path: Path) -> None:
    """Every block begins after all that were taken, also after a kill."""
    first = opened(path).take_producer_ids()
    assert set(first).isdisjoint(opened(killed(path)).take_producer_ids())


def test_foreign_database_is_left_alone(opened: Opened, path: Path) -> None:
    """A database of another program is refused and not changed."""
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (a)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match="another program created it") as raised:
        opened(path)
    assert raised.value.hint is not None
    assert path.read_bytes() == before


@pytest.mark.parametrize("data", [b"not a database at all, but long enough to be looked at" * 100])
def test_what_is_no_database_is_refused(opened: Opened, path: Path, data: bytes) -> None:
    """Garbage in the place of the file is one clear error."""
    path.write_bytes(data)
    with pytest.raises(StorageError, match="cannot use"):
        opened(path)


def test_damage_is_noticed_at_the_start(opened: Opened, path: Path) -> None:
    """A damaged page is found when the file is opened, not when it is needed."""
    store = opened(path)
    for at in range(200):
        store.put_topic(StoredTopic(topic_id=f"id-{at}", name=f"topic-{at}", partitions=1))
    store.close()
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 3] = b"\xa5" * 4096
    path.write_bytes(data)
    with pytest.raises(StorageError):
        opened(path)


def test_newer_schema_is_refused(opened: Opened, path: Path) -> None:
    """A file of a later version is not touched by this one."""
    opened(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StorageError, match="schema version is 99, expected 1"):
        opened(path)


def test_full_disk_changes_nothing_and_passes(opened: Opened, path: Path) -> None:
    """What cannot be written is an error each time, all or nothing; with room again everything works."""
    store = opened(path)
    topic = StoredTopic(topic_id="id", name="t", partitions=1, configs={"retention.ms": "1" * 50_000})
    store.put_topic(topic)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.recent_path.stat().st_size + 3000, limits[1]))
    try:
        for _ in range(3):
            with pytest.raises(StorageError, match=r"tidegate\.db"):
                store.delete_topic(topic)
            with pytest.raises(StorageError, match=r"tidegate\.db"):
                store.put_topic(topic)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(store.topics()) == [topic]
    store.delete_topic(topic)
    assert list(store.topics()) == []


def test_changed_settings_are_kept_all_or_none(path: Path, opened: Opened) -> None:
    """By node, the empty one for all; None forgets one."""
    store = opened(path)
    store.change_settings("1", {"a": "x", "b": ""})
    store.change_settings("", {"a": "y"})
    store.change_settings("1", {"a": None, "c": "ö"})
    assert opened(path).load_settings() == [("", "a", "y"), ("1", "b", ""), ("1", "c", "ö")]
    with pytest.raises(StorageError):
        store.change_settings("1", {"d": "1", "e": object()})  # type: ignore[dict-item]
    assert len(opened(path).load_settings()) == 3


def test_last_commits_are_brought_into_the_database_by_another_thread(opened: Opened, path: Path) -> None:
    """Meanwhile others are committed; all are there afterwards, and the file of the last ones is used again."""
    store = opened(path)
    for number in range(300):
        store.set_meta(f"name-{number}", "x" * 4000)
    grown = store.recent_bytes()
    assert grown > 1 << 20
    with ThreadPoolExecutor(1) as worker:
        done = worker.submit(store.checkpoint)
        store.set_meta("meanwhile", "y")
        done.result()
        worker.submit(store.checkpoint).result()
    store.set_meta("later", "z")
    assert store.recent_bytes() == grown or store.recent_bytes() < grown + 100_000
    again = opened(killed(path))
    assert (again.meta("name-299"), again.meta("meanwhile"), again.meta("later")) == ("x" * 4000, "y", "z")


def test_acls_survive(opened: Opened, tmp_path: Path) -> None:
    """They are created once however often they are, deleted one by one, and there after the process has died."""
    first, second = Acl(2, "t", 3, "User:a", "*", 3, 3), Acl(2, "t\x00ü", 4, "User:a", "*", 3, 2)
    store = opened(tmp_path / "db")
    store.create_acls([first, second])
    store.create_acls([first])
    store.delete_acls([second, second])
    store.create_acls([second._replace(host="::1")])
    copied = tmp_path / "copy"
    copied.mkdir()
    for path in tmp_path.glob("db*"):
        shutil.copy(path, copied)
    assert sorted(opened(copied / "db").load_acls()) == sorted([first, second._replace(host="::1")])
