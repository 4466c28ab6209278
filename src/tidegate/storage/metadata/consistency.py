"""Refuse to start where the data directory and the metadata in it do not agree.

The remains of a killed broker are no disagreement: a topic is in the store before its directories exist
(`growing_topics`), and leaves the store before they are removed (`deleted_topics`, `*.deleted`). Anything else means
that files were lost or mixed up: a broker that started would begin empty where records were acknowledged.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tidegate.storage.errors import StorageError
from tidegate.storage.metadata.store import StoredTopic

__all__ = ["check_owner", "check_partition", "check_store", "check_strays"]

_PARTITION = re.compile(r".+-[0-9]+")
_BESIDE_RECORDS = (".index", ".timeindex")
_OF_KAFKA = "meta.properties"
_BACKUP = "restore the directory and the database from the same backup"


def check_owner(data_dir: Path, database: Path) -> None:
    """Refuse a directory of Apache Kafka's, before anything is written to it. Raises `StorageError`.

    Kafka does not start if it finds foreign files in its directory.
    """
    if (data_dir / _OF_KAFKA).exists() and not database.exists():
        raise StorageError(
            f"{str(data_dir)!r} is a data directory of Apache Kafka: it contains {_OF_KAFKA!r}; nothing was changed",
            hint="use another directory (--data, log.dirs), and copy records from Kafka with a Kafka client",
        )


def check_store(data_dir: Path, database: Path, checkpoint: Path) -> None:
    """Refuse a directory that was in use and has no database. Raises `StorageError`."""
    if database.exists() and database.stat().st_size:
        return
    used = checkpoint.name if checkpoint.exists() else _some_stray(data_dir, ())
    if used is not None:
        raise StorageError(
            f"{str(database)!r} is missing or empty, but the directory contains {used!r}",
            hint="restore the database from a backup; or move the data directory away to start empty",
        )


def check_partition(directory: Path, stored: StoredTopic, *, owner: str | None, recovery_point: int) -> None:
    """Refuse a partition whose directory is not there, is another topic's, or lacks records. Raises `StorageError`.

    An empty directory is taken as it is: it is how an operator says that the records are lost.
    """
    try:
        names = set(os.listdir(directory))
    except FileNotFoundError:
        raise StorageError(
            f"{str(directory)!r} is missing, but topic {stored.name!r} has {stored.partitions} partitions",
            hint=f"{_BACKUP}; or create the directory, empty, to continue without its records",
        ) from None
    if owner is not None and owner != stored.topic_id:
        raise StorageError(
            f"{str(directory)!r} belongs to topic id {owner}, expected {stored.topic_id} of topic {stored.name!r}",
            hint=f"{_BACKUP}; or replace it with an empty directory to continue without its records",
        )
    problem = _files_problem(names, recovery_point)
    if problem is not None:
        raise StorageError(
            f"{str(directory)!r} {problem}",
            hint="restore the partition's files from a backup; or empty the directory to continue without its records",
        )


def _files_problem(names: set[str], recovery_point: int) -> str | None:
    logs = {name.removesuffix(".log") for name in names if name.endswith(".log")}
    if not logs and names and (recovery_point > 0 or any(name.endswith(".snapshot") for name in names)):
        return f"contains no records, expected records up to offset {recovery_point}"
    for name in sorted(names):
        stem, _, suffix = name.partition(".")
        if f".{suffix}" in _BESIDE_RECORDS and stem not in logs:
            return f"contains {name!r} without its records, {stem + '.log'!r}"
    return None


def check_strays(data_dir: Path, known: Iterable[str]) -> None:
    """Refuse directories with records of a partition that the store does not know. Raises `StorageError`."""
    stray = _some_stray(data_dir, known)
    if stray is not None:
        raise StorageError(
            f"{str(data_dir / stray)!r} contains records of a partition that is not in the database",
            hint=f"{_BACKUP}; or move the directory away",
        )


def _some_stray(data_dir: Path, known: Iterable[str]) -> str | None:
    """Return a directory that holds records of a partition that is not known."""
    known = frozenset(known)
    for directory in data_dir.iterdir():
        is_partition = directory.name not in known and _PARTITION.fullmatch(directory.name) is not None
        if is_partition and any(path.stat().st_size for path in directory.glob("*.log")):
            return directory.name
    return None
