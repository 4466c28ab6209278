"""Metadata that must survive besides records: topics, quotas, ACLs, producer ids, offsets, this node's identity.

One SQLite file with a write-ahead log and `synchronous=NORMAL`: committed changes survive `kill -9`, because they have
been handed to the kernel. If the machine itself goes down, the last commits may be lost, but they are never torn.
"""

import json
import logging
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from tidegate.acl import Acl
from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.storage.errors import StorageError
from tidegate.storage.groups.group_rows import GroupRows
from tidegate.storage.metadata.credential_rows import CredentialRows
from tidegate.storage.metadata.quota_rows import QuotaRows
from tidegate.storage.metadata.schema import INCREMENTAL, prepare_database, unusable
from tidegate.storage.metadata.store_connection import StoreConnection
from tidegate.storage.private_files import make_private_file

__all__ = ["PRODUCER_ID_BLOCK", "MetadataStore", "StoredTopic"]

PRODUCER_ID_BLOCK = (
    1000  # ids taken from the store at a time. Source: Kafka `ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`
)

_MOST_RECENT_BYTES = 64 << 20  # beyond it changes wait for what `checkpoint` has not moved yet
_FREE_PAGES = 1024  # of 4 KB, that the file may keep for what comes
_VACUUMED_AT_ONCE, _VACUUMS = 256, 4  # pages, a millisecond or two; and repetitions
_DECOY_KEY = "scram_decoy_key"
_DECOY_KEY_BYTES = 32
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A topic as it is kept: `topic_id` is a UUID as text, `configs` holds only what the topic itself sets.

    owners: how many of its partitions belong to which principal (`partition_bound`); the others to
    none.
    """

    topic_id: str
    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, int] = field(default_factory=dict)

    @property
    def principal(self) -> str:
        """The principal for which producer states read from the topic's files count: its only owner, else the topic.

        A tenant can create many topics, which count together. A topic without an owner, or with several, counts for
        itself, because any principal may have written the states.
        """
        if len(self.owners) == 1:
            ((owner, partitions),) = self.owners.items()
            if partitions == self.partitions:
                return owner
        return f"Topic:{self.name}"

    def partitions_by_owner(self) -> dict[str, int]:
        """Return the number of partitions of each owner, `UNKNOWN_OWNER` included."""
        return {**self.owners, UNKNOWN_OWNER: self.partitions - sum(self.owners.values())}


class MetadataStore:
    """The SQLite file. Every method that changes something has committed when it returns.

    A `QuotaStore`, an `AclStore`, a `SettingStore` and a `CredentialStore`. groups: the rows of groups and committed
    offsets. written_groups: the same by a connection of its own, for the thread that writes them.

    Every method raises `StorageError` where SQLite fails, and has then changed nothing.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, made when absent. Raises `StorageError` where it is not ours or cannot be used."""
        self._path = path
        self.recent_path = path.with_name(path.name + "-wal")
        """The file that holds the last commits (SQLite's write-ahead log); with it synced, all of them are."""
        self._lost: str | None = None
        self._writing = RLock()
        try:
            make_private_file(path)  # SQLite gives the files beside it the same mode
            self._connection, self._writer = self._connect(), self._connect()
        except (OSError, sqlite3.Error) as error:
            raise unusable(path, str(error)) from error
        self._run, self._run_many = self._connection.run, self._connection.run_many
        self._change, self._transaction = self._connection.change, self._connection.transaction
        quotas = QuotaRows(self._connection)
        self.load_quotas, self.apply_quota_records_in_slices = quotas.load, quotas.apply
        self.groups = GroupRows(self._connection)
        self.written_groups = GroupRows(self._writer)
        credentials = CredentialRows(self._connection)
        self.load_credentials, self.change_credentials = credentials.load, credentials.change
        try:
            prepare_database(self._connection, path, self.recent_path)
            self.groups.prepare()
            self._writer.prepare()
            # `check_files` compares it: a file put in this one's place has another.
            self._inode = os.stat(path).st_ino
        except sqlite3.Error as error:
            self.close()
            raise unusable(path, str(error)) from error
        except StorageError:
            self.close()
            raise

    def _connect(self) -> StoreConnection:
        return StoreConnection(self._path, self._writing, lambda: self._lost)

    @property
    def is_lost(self) -> bool:
        """Return whether the file was removed or replaced: nothing is changed any more."""
        return self._lost is not None

    def check_files(self) -> str | None:
        """Check whether the file is still the one that was opened. Once it is not, the store refuses all changes.

        Return the problem, once: when it is first seen.
        """
        if self._lost is not None:
            return None
        try:
            replaced = os.stat(self._path).st_ino != self._inode
            os.stat(self.recent_path)
        except FileNotFoundError as error:
            self._lost = f"{error.filename} was deleted while in use"
        else:
            self._lost = f"{self._path} was replaced while in use" if replaced else None
        return self._lost

    def recent_bytes(self) -> int:
        """Return the size of the file that holds the last commits."""
        try:
            return self.recent_path.stat().st_size
        except FileNotFoundError:
            return 0

    def checkpoint(self, least_bytes: int = 0) -> None:
        """Move the write-ahead log into the database if it has at least `least_bytes`. Runs on the writer's thread.

        This waits for the disk. Other changes go on meanwhile, except when the log is very large: SQLite begins it anew
        only after all of it has been moved.
        """
        if self.recent_bytes() < least_bytes:
            return
        db = self._writer.db
        try:
            _, frames, moved = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if moved < frames and self.recent_bytes() > _MOST_RECENT_BYTES:
                # With the lock held nothing is added: all is moved, and the file begins anew (decision 0101).
                with self._writing:
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            _logger.warning("cannot move the last commits into %s: %s", self._path, error)

    def shrink(self) -> None:
        """Free a few MB of the file space that deletions have left unused. Runs on the writer's thread.

        A file made by an earlier version keeps its size; its unused space is used again.
        """
        db = self._writer.db
        try:
            (kind,) = db.execute("PRAGMA auto_vacuum").fetchone()
            for _ in range(_VACUUMS):
                (free,) = db.execute("PRAGMA freelist_count").fetchone()
                if kind != INCREMENTAL or free <= _FREE_PAGES or self._lost is not None:
                    return
                with self._writing:
                    db.executescript(
                        f"PRAGMA incremental_vacuum({_VACUUMED_AT_ONCE})"
                    )  # `execute` frees one page
        except sqlite3.Error as error:
            _logger.warning("cannot shrink %s: %s", self._path, error)
        self.checkpoint()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
        self._connection.close()

    # --- the node

    def meta(self, name: str) -> str | None:
        """Return a fact about the node, None when it was never set."""
        row = self._run("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, name: str, value: str) -> None:
        """Keep a fact about the node."""
        self._change("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def kept_meta(self, name: str, make: Callable[[], str]) -> str:
        """Return a value that is made once, when it is first asked for."""
        value = self.meta(name)
        if value is None:
            value = make()
            self.set_meta(name, value)
        return value

    def take_producer_ids(self) -> range:
        """Return producer ids that were never given out before."""
        # Stored before any id is used: after `kill -9` the rest of a block is left out, but no id is given twice.
        first = int(self.meta("next_producer_id") or 0)
        self.set_meta("next_producer_id", str(first + PRODUCER_ID_BLOCK))
        return range(first, first + PRODUCER_ID_BLOCK)

    # --- settings changed on the running broker

    def load_settings(self) -> list[tuple[str, str, str]]:
        """Return node (empty: all nodes), name and text of each."""
        return self._run("SELECT node, name, value FROM dynamic_settings ORDER BY node, name").fetchall()

    def change_settings(self, node: str, changes: Mapping[str, str | None]) -> None:
        """Keep settings of a node, all of `changes` or none; None forgets one."""
        with self._transaction():
            for name, value in changes.items():
                if value is None:
                    self._run("DELETE FROM dynamic_settings WHERE node=? AND name=?", (node, name))
                else:
                    self._run("INSERT OR REPLACE INTO dynamic_settings VALUES (?, ?, ?)", (node, name, value))

    # --- topics

    def topics(self) -> Iterator[StoredTopic]:
        """Yield every topic."""
        owners: dict[str, dict[str, int]] = {}
        for topic_id, owner, partitions in self._run("SELECT topic_id, owner, partitions FROM topic_owners"):
            owners.setdefault(topic_id, {})[owner] = partitions
        for topic_id, name, partitions, configs in self._run(
            "SELECT topic_id, name, partitions, configs FROM topics ORDER BY name"
        ):
            yield StoredTopic(
                topic_id=topic_id,
                name=name,
                partitions=partitions,
                configs=json.loads(configs),
                owners=owners.get(topic_id, {}),
            )

    def put_topic(self, topic: StoredTopic, *, on_disk: int | None = None) -> None:
        """Store a topic, new or changed. on_disk: how many of its partitions have a directory, if not all have one."""
        with self._transaction():
            self._run(
                "INSERT OR REPLACE INTO topics VALUES (?, ?, ?, ?)",
                (topic.topic_id, topic.name, topic.partitions, json.dumps(dict(topic.configs))),
            )
            self._run("DELETE FROM topic_owners WHERE topic_id=?", (topic.topic_id,))
            for owner, partitions in topic.owners.items():
                self._run("INSERT INTO topic_owners VALUES (?, ?, ?)", (topic.topic_id, owner, partitions))
            if on_disk is not None:
                # After a kill, partitions from here on may lack a directory without being lost (decision 0024).
                self._run("INSERT OR REPLACE INTO growing_topics VALUES (?, ?)", (topic.topic_id, on_disk))

    def growing_topics(self) -> dict[str, int]:
        """Return, for topics whose growth did not complete, how many partitions surely have a directory."""
        return dict(self._run("SELECT topic_id, partitions FROM growing_topics").fetchall())

    def forget_growing_topic(self, topic_id: str) -> None:
        """Note that all partitions of a topic have their directories."""
        self._change("DELETE FROM growing_topics WHERE topic_id=?", (topic_id,))

    def delete_topic(self, topic: StoredTopic) -> None:
        """Delete a topic, and remember that its files and the offsets committed in it must be deleted too."""
        with self._transaction():
            for table in ("topics", "growing_topics", "start_offsets", "topic_owners"):
                self._run(f"DELETE FROM {table} WHERE topic_id=?", (topic.topic_id,))
            self._run(
                "INSERT OR REPLACE INTO deleted_topics VALUES (?, ?, ?)",
                (topic.topic_id, topic.name, topic.partitions),
            )

    def deleted_topics(self) -> Iterator[StoredTopic]:
        """Yield the deleted topics whose files may still be there."""
        for topic_id, name, partitions in self._run("SELECT topic_id, name, partitions FROM deleted_topics"):
            yield StoredTopic(topic_id=topic_id, name=name, partitions=partitions)

    def forget_deleted_topic(self, topic_id: str) -> None:
        """Forget a deleted topic whose files have been moved out of the way."""
        self._change("DELETE FROM deleted_topics WHERE topic_id=?", (topic_id,))

    def start_offsets(self) -> dict[tuple[str, int], int]:
        """Return the start offsets of logs whose first records were deleted, by topic id and partition."""
        rows = self._run("SELECT topic_id, partition, start_offset FROM start_offsets").fetchall()
        return {(topic_id, partition): offset for topic_id, partition, offset in rows}

    def put_start_offsets(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Store the start offsets of logs, by topic id and partition: all of `offsets`, or none."""
        with self._transaction():
            rows = [(*partition, offset) for partition, offset in offsets.items()]
            self._run_many("INSERT OR REPLACE INTO start_offsets VALUES (?, ?, ?)", rows)

    # --- ACLs

    def load_acls(self) -> list[Acl]:
        """Return every ACL."""
        return [Acl(*row) for row in self._run("SELECT * FROM acls").fetchall()]

    def create_acls(self, acls: Sequence[Acl]) -> None:
        """Keep all of `acls`, or none; those that are kept already stay."""
        with self._transaction():
            self._run_many("INSERT OR IGNORE INTO acls VALUES (?, ?, ?, ?, ?, ?, ?)", acls)

    def delete_acls(self, acls: Sequence[Acl]) -> None:
        """Forget all of `acls`, or none."""
        with self._transaction():
            self._run_many(
                "DELETE FROM acls WHERE resource_type=? AND resource_name=? AND pattern_type=?"
                " AND principal=? AND host=? AND operation=? AND permission=?",
                acls,
            )

    def decoy_key(self) -> bytes:
        """Return a secret of this cluster, made at the first call: unknown users are asked with salts made of it."""
        return bytes.fromhex(self.kept_meta(_DECOY_KEY, lambda: secrets.token_hex(_DECOY_KEY_BYTES)))
