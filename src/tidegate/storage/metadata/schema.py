"""The tables of the metadata store's file, and the checks before it is used."""

import logging
import shutil
import sqlite3
from pathlib import Path

from tidegate.storage.errors import StorageError
from tidegate.storage.metadata.credential_rows import CREDENTIALS_TABLE
from tidegate.storage.metadata.quota_rows import PENDING_TABLE
from tidegate.storage.metadata.store_connection import StoreConnection
from tidegate.storage.metadata.write_ahead_log import find_damage
from tidegate.storage.private_files import make_private_file

__all__ = ["INCREMENTAL", "prepare_database", "unusable"]

INCREMENTAL = 2  # of `auto_vacuum`
_APPLICATION_ID = 0x54494445  # "TIDE": marks the file as ours
_SCHEMA_VERSION = 1
_LATER_TABLES = """
CREATE TABLE IF NOT EXISTS growing_topics (topic_id TEXT PRIMARY KEY, partitions INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topic_owners (
    topic_id TEXT NOT NULL, owner TEXT NOT NULL, partitions INTEGER NOT NULL, PRIMARY KEY (topic_id, owner)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dynamic_settings (
    node TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (node, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS acls (
    resource_type INTEGER NOT NULL, resource_name TEXT NOT NULL, pattern_type INTEGER NOT NULL,
    principal TEXT NOT NULL, host TEXT NOT NULL, operation INTEGER NOT NULL, permission INTEGER NOT NULL,
    PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS start_offsets (
    topic_id TEXT NOT NULL, partition INTEGER NOT NULL, start_offset INTEGER NOT NULL, PRIMARY KEY (topic_id, partition)
) WITHOUT ROWID
"""
"""Those of files that an older version made."""
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (
    topic_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL, configs TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE deleted_topics (topic_id TEXT PRIMARY KEY, name TEXT NOT NULL, partitions INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE quotas (
    entity TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (entity, name)
) WITHOUT ROWID;
"""

_logger = logging.getLogger("tidegate.storage.metadata.store")  # that of the store


def prepare_database(connection: StoreConnection, path: Path, recent_path: Path) -> None:
    """Create the tables that are missing, after a look at the file. Raises `StorageError`, `sqlite3.Error`.

    recent_path: the file with the last commits.
    """
    db = connection.db
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id != _APPLICATION_ID and tables:
        raise unusable(path, "another program created it")
    if not tables:
        db.execute(f"PRAGMA auto_vacuum={INCREMENTAL}")  # only before there is anything in the file
    db.execute("PRAGMA journal_mode=WAL")
    # Before the first change, which would overwrite the frames that are looked at (decision 0112).
    _report_damage(db, path, recent_path)
    connection.prepare()
    if not tables:
        db.executescript(
            f"BEGIN; {_SCHEMA} PRAGMA application_id={_APPLICATION_ID};"
            f" PRAGMA user_version={_SCHEMA_VERSION}; COMMIT;"
        )
    elif version != _SCHEMA_VERSION:
        raise unusable(path, f"its schema version is {version}, expected {_SCHEMA_VERSION}")
    elif (damage := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise unusable(path, damage)
    # These tables came after the schema version: a file of an earlier version gets them here.
    for statement in (*_LATER_TABLES.split(";"), PENDING_TABLE, CREDENTIALS_TABLE):
        db.execute(statement)


def _report_damage(db: sqlite3.Connection, database: Path, path: Path) -> None:
    """Log damage of the write-ahead log, which SQLite passes over, and keep a copy before it is written over."""
    _, frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    damage = find_damage(path, max(frames, 0))
    if damage is None:
        return
    if damage.is_end:
        _logger.info(
            "ignored an incomplete commit at the end of %s (from byte %d), for example after a power failure",
            path,
            damage.offset,
        )
        return
    copy = path.with_name(f"{path.name}.damaged")
    try:
        make_private_file(copy)
        shutil.copyfile(path, copy)
    except OSError as error:
        raise unusable(database, f"{path.name} is damaged and cannot be copied: {error}") from error
    lost = "all of its changes" if damage.lost_frames is None else f"{damage.lost_frames} changed pages"
    _logger.error(
        "%s is damaged at byte %d: %s are lost; saved a copy as %s; hint: after a power failure the last changes"
        " may be missing; otherwise check the disk, and if topics, quotas, users or offsets are missing, stop"
        " the broker and restore the data directory from a backup",
        path,
        damage.offset,
        lost,
        copy.name,
    )


def unusable(path: Path, why: str) -> StorageError:
    """Return the error of a database that cannot be used."""
    return StorageError(
        f"cannot use {str(path)!r}: {' '.join(why.split())}",
        hint="restore the file from a backup, or move the data directory away to start empty",
    )
