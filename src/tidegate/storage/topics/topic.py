"""One topic: its logs, and the directories of its partitions."""

import logging
from collections.abc import Mapping
from pathlib import Path

from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.metadata.consistency import check_partition, check_strays
from tidegate.storage.metadata.store import StoredTopic
from tidegate.storage.private_files import PRIVATE_DIRECTORY, replace_private_file
from tidegate.storage.topics.topic_settings import TopicSettings

__all__ = ["Topic", "check_directories", "own_directory", "owner_of", "partition_directory"]

_PARTITION_METADATA = "partition.metadata"  # Kafka's file that says whose directory this is
_logger = logging.getLogger("tidegate.storage.topics.topics")  # that of the topics


def partition_directory(data_dir: Path, name: str, partition: int) -> Path:
    """Return where a partition's log lies."""
    return data_dir / f"{name}-{partition}"


class Topic:
    """A topic: `logs[n]` is partition n. `topic_id` is a UUID as text.

    owners: how many of its partitions belong to which principal; the others to none (`PartitionBound`).
    """

    __slots__ = ("configs", "logs", "name", "owners", "settings", "topic_id")

    def __init__(self, stored: StoredTopic, settings: TopicSettings) -> None:
        self.name = stored.name
        self.topic_id = stored.topic_id
        self.configs: Mapping[str, str] = dict(stored.configs)
        self.owners: Mapping[str, int] = dict(stored.owners)
        self.settings = settings
        self.logs: list[PartitionLog] = []

    def log(self, partition: int) -> PartitionLog | None:
        """Return the log of a partition, None where there is no such partition."""
        return self.logs[partition] if 0 <= partition < len(self.logs) else None

    def stored(self) -> StoredTopic:
        """Return the topic as the store keeps it."""
        return StoredTopic(
            topic_id=self.topic_id,
            name=self.name,
            partitions=len(self.logs),
            configs=self.configs,
            owners=self.owners,
        )


def owner_of(directory: Path) -> str | None:
    """Return the id of the topic that a directory belongs to, None where that is not written down."""
    try:
        lines = (directory / _PARTITION_METADATA).read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("topic_id:")), None)


def own_directory(data_dir: Path, stored: StoredTopic, partition: int) -> Path:
    """Return a partition's directory, made when absent. One that belongs to another topic is moved aside."""
    directory = partition_directory(data_dir, stored.name, partition)
    owner = owner_of(directory)
    if owner is not None and owner != stored.topic_id:
        stray = data_dir / f"{stored.name}-{partition}.{owner}-stray"
        _logger.warning("moving %s to %s: it belongs to another topic id", directory.name, stray.name)
        directory.rename(stray)
    directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)  # not those above it: they must be there
    metadata = directory / _PARTITION_METADATA
    if not metadata.exists():
        replace_private_file(metadata, f"version: 0\ntopic_id: {stored.topic_id}\n".encode())
    return directory


def check_directories(
    data_dir: Path,
    all_stored: list[StoredTopic],
    growing: Mapping[str, int],
    recovery_points: Mapping[tuple[str, int], int],
) -> None:
    """Check that the directories agree with the store. Raises `StorageError`."""
    known = set()
    for stored in all_stored:
        for partition in range(stored.partitions):
            directory = partition_directory(data_dir, stored.name, partition)
            known.add(directory.name)
            if partition < growing.get(stored.topic_id, stored.partitions):
                recovery_point = recovery_points.get((stored.name, partition), 0)
                check_partition(directory, stored, owner=owner_of(directory), recovery_point=recovery_point)
    check_strays(data_dir, known)
