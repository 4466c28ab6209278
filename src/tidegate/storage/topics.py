"""The topics of the node: their logs by name and by id, created, grown and deleted on disk as in the store.

This node leads every partition. A topic is first in the store and then on disk, and goes the other way round when it
is deleted: whatever a crash leaves half done is finished at the next start.
"""

import logging
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tidegate.storage.config import MAX_PARTITIONS, PRODUCER_ID_EXPIRATION_MS, StorageConfig
from tidegate.storage.consistency import check_partition, check_strays
from tidegate.storage.errors import StorageError
from tidegate.storage.log import PartitionLog
from tidegate.storage.private_files import PRIVATE_DIRECTORY, replace_private_file
from tidegate.storage.recovery import open_log
from tidegate.storage.store import MetadataStore, StoredTopic
from tidegate.storage.topic_configs import settings_of
from tidegate.storage.topic_settings import TopicSettings

__all__ = ["LogOpener", "Topic", "Topics", "partition_directory", "remove_directory"]

LogOpener = Callable[[Path, TopicSettings], PartitionLog]

_PARTITION_METADATA = "partition.metadata"  # Kafka's file that tells whose directory this is
_logger = logging.getLogger(__name__)


def partition_directory(data_dir: Path, name: str, partition: int) -> Path:
    """Return where a partition's log lies."""
    return data_dir / f"{name}-{partition}"


class Topic:
    """A topic: `logs[n]` is partition n. `topic_id` is a UUID as text."""

    __slots__ = ("configs", "logs", "name", "settings", "topic_id")

    def __init__(self, stored: StoredTopic, settings: TopicSettings) -> None:
        self.name = stored.name
        self.topic_id = stored.topic_id
        self.configs: Mapping[str, str] = dict(stored.configs)
        self.settings = settings
        self.logs: list[PartitionLog] = []

    def log(self, partition: int) -> PartitionLog | None:
        """Return the log of a partition, None where there is no such partition."""
        return self.logs[partition] if 0 <= partition < len(self.logs) else None

    def stored(self, *, partitions: int | None = None) -> StoredTopic:
        """Return the topic as the store keeps it."""
        return StoredTopic(
            topic_id=self.topic_id,
            name=self.name,
            partitions=len(self.logs) if partitions is None else partitions,
            configs=self.configs,
        )


class Topics:
    """All topics. `version` grows with every change."""

    def __init__(
        self, data_dir: Path, store: MetadataStore, config: StorageConfig, *, remove: Callable[[Path], None]
    ) -> None:
        """Make an empty view. `remove` deletes a directory that nobody needs any more, in its own time."""
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[str, Topic] = {}
        self.version = 0
        self.partition_count = 0
        self.open_log: LogOpener = _open_new_log
        self._data_dir = data_dir
        self._store = store
        self._config = config
        self._remove = remove

    def __iter__(self) -> Iterator[Topic]:
        return iter(self.by_name.values())

    def load(
        self,
        open_log: Callable[[StoredTopic, int, Path, TopicSettings], PartitionLog],
        recovery_points: Mapping[tuple[str, int], int],
    ) -> None:
        """Finish what was begun and open every topic. Raises `StorageError` where store and directories disagree."""
        for deleted in list(self._store.deleted_topics()):
            self._delete_files(deleted)
        leftovers = list(self._data_dir.glob("*.deleted"))
        all_stored = self._finish_lost_deletions(leftovers)
        growing = self._store.growing_topics()
        self._check(all_stored, growing, recovery_points)
        for leftover in leftovers:
            self._remove(leftover)
        for stored in all_stored:
            topic = Topic(stored, settings_of(stored.configs, self._config))
            for partition in range(stored.partitions):
                directory = self._own_directory(stored, partition)
                topic.logs.append(open_log(stored, partition, directory, topic.settings))
            self._add(topic)
        for topic_id in growing:
            self._store.forget_growing_topic(topic_id)

    def _finish_lost_deletions(self, leftovers: list[Path]) -> list[StoredTopic]:
        """Delete the topics whose deletion the store has lost, as when the machine goes down; return the others."""
        deleted = {leftover.name.rpartition("-")[0] for leftover in leftovers}
        kept = []
        for stored in list(self._store.topics()):
            if stored.topic_id in deleted:
                self._store.delete_topic(stored)
                self._delete_files(stored)
            else:
                kept.append(stored)
        return kept

    def _check(
        self,
        all_stored: list[StoredTopic],
        growing: Mapping[str, int],
        recovery_points: Mapping[tuple[str, int], int],
    ) -> None:
        """Refuse to open directories that do not agree with the store. Raises `StorageError`."""
        known = set()
        for stored in all_stored:
            for partition in range(stored.partitions):
                directory = partition_directory(self._data_dir, stored.name, partition)
                known.add(directory.name)
                if partition < growing.get(stored.topic_id, stored.partitions):
                    recovery_point = recovery_points.get((stored.name, partition), 0)
                    check_partition(directory, stored, owner=_owner(directory), recovery_point=recovery_point)
        check_strays(self._data_dir, known)

    def room(self) -> int:
        """Return how many partitions the node may still hold."""
        return MAX_PARTITIONS - self.partition_count

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic; the caller has checked name, number and settings. Raises `StorageError`, changing nothing."""
        stored = StoredTopic(topic_id=str(uuid.uuid4()), name=name, partitions=partitions, configs=configs)
        topic = Topic(stored, settings_of(configs, self._config))
        self._store.put_topic(stored, on_disk=0)
        try:
            self._grow(topic, stored, partitions)
        except StorageError:
            self._take_back(lambda: self._store.delete_topic(stored))
            self._delete_files(stored)
            raise
        self._take_back(lambda: self._store.forget_growing_topic(stored.topic_id))
        self._add(topic)
        return topic

    def add_partitions(self, topic: Topic, count: int) -> None:
        """Give a topic `count` partitions, more than it has. Raises `StorageError`, changing nothing."""
        before = len(topic.logs)
        self._store.put_topic(topic.stored(partitions=count), on_disk=before)
        try:
            self._grow(topic, topic.stored(), count)
        except StorageError:
            self._take_back(lambda: self._store.put_topic(topic.stored(partitions=before)))
            del topic.logs[before:]
            raise
        self._take_back(lambda: self._store.forget_growing_topic(topic.topic_id))
        self.partition_count += count - before
        self.version += 1

    @staticmethod
    def _take_back(change: Callable[[], None]) -> None:
        """Change the store where a failure changes nothing for anybody: the next start sees to it."""
        try:
            change()
        except StorageError as error:
            _logger.warning("%s; the next start sees to it", error)

    def delete(self, topic: Topic) -> None:
        """Delete a topic and its records; sends under way still read the files. Raises `StorageError`."""
        stored = topic.stored()
        self._store.delete_topic(stored)
        del self.by_name[topic.name]
        del self.by_id[topic.topic_id]
        self.partition_count -= len(topic.logs)
        self.version += 1
        self._delete_files(stored)
        for log in topic.logs:
            log.forget()

    def _add(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        self.partition_count += len(topic.logs)
        self.version += 1

    def _grow(self, topic: Topic, stored: StoredTopic, count: int) -> None:
        try:
            for partition in range(len(topic.logs), count):
                topic.logs.append(self.open_log(self._own_directory(stored, partition), topic.settings))
        except OSError as error:
            raise StorageError(
                f"cannot create partition {len(topic.logs)} of topic {topic.name!r}: {error}"
            ) from error

    def _own_directory(self, stored: StoredTopic, partition: int) -> Path:
        """Return a partition's directory, made when absent. One that belongs to another topic is moved aside."""
        directory = partition_directory(self._data_dir, stored.name, partition)
        owner = _owner(directory)
        if owner is not None and owner != stored.topic_id:
            stray = self._data_dir / f"{stored.name}-{partition}.{owner}-stray"
            _logger.warning(
                "moving %s to %s: it belongs to a topic of another id", directory.name, stray.name
            )
            directory.rename(stray)
        directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)  # not those above it: they must be there
        metadata = directory / _PARTITION_METADATA
        if not metadata.exists():
            replace_private_file(metadata, f"version: 0\ntopic_id: {stored.topic_id}\n".encode())
        return directory

    def _delete_files(self, stored: StoredTopic) -> None:
        """Move a deleted topic's directories out of the way, then forget it and let them be removed.

        What fails is tried again at the next start.
        """
        moved = []
        try:
            for partition in range(stored.partitions):
                directory = partition_directory(self._data_dir, stored.name, partition)
                if _owner(directory) == stored.topic_id:
                    moved.append(directory.rename(self._data_dir / f"{stored.topic_id}-{partition}.deleted"))
            self._store.forget_deleted_topic(stored.topic_id)
        except (OSError, StorageError) as error:
            _logger.warning("cannot remove all files of the deleted topic %r: %s", stored.name, error)
        for directory in moved:
            self._remove(directory)


def _owner(directory: Path) -> str | None:
    """Return the id of the topic that a directory belongs to, None where that is not written down."""
    try:
        lines = (directory / _PARTITION_METADATA).read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("topic_id:")), None)


def _open_new_log(directory: Path, settings: TopicSettings) -> PartitionLog:
    return open_log(directory, settings, producer_expiration_ms=PRODUCER_ID_EXPIRATION_MS, trust_writes=True)


def remove_directory(directory: Path) -> None:
    """Delete a directory and all in it; what cannot be deleted stays and is tried again at the next start."""
    shutil.rmtree(directory, ignore_errors=True)
