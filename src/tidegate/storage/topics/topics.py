"""The topics: their logs by name and by id, created, grown and deleted on disk as in the store.

A topic is first in the store and then on disk, and goes the other way round when it
is deleted: whatever a crash leaves half done is finished at the next start.
"""

import logging
import uuid
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.in_slices import run_at_once
from tidegate.storage.config import StorageConfig
from tidegate.storage.errors import StorageError
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.metadata.store import MetadataStore, StoredTopic
from tidegate.storage.topics.compaction_notice import CompactionNotice
from tidegate.storage.topics.partition_bound import PartitionBound
from tidegate.storage.topics.topic import (
    Topic,
    check_directories,
    own_directory,
    owner_of,
    partition_directory,
)
from tidegate.storage.topics.topic_configs import settings_of
from tidegate.storage.topics.topic_settings import TopicSettings

__all__ = ["LogOpener", "Topics"]

LogOpener = Callable[[Path, TopicSettings, StoredTopic], PartitionLog]

_logger = logging.getLogger(__name__)


class Topics:
    """All topics. `version` grows with every change, and `on_change` is called then.

    before_create: called with the name of a topic before there is one of it. watch_log: called with a log whose
    settings have changed. bound: how many partitions there may be, and whose they are.
    """

    def __init__(
        self,
        data_dir: Path,
        store: MetadataStore,
        config: StorageConfig,
        *,
        open_log: LogOpener,
        forget_offsets: Callable[[str], Iterator[None]],
        remove: Callable[[Path], None],
    ) -> None:
        """Make an empty view.

        open_log: opens the log of a new partition. forget_offsets: forgets the offsets committed in a deleted topic.
        remove: deletes a directory that is no longer needed, in its own time.
        """
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[str, Topic] = {}
        self.version = 0
        self.on_change: Callable[[], None] = _nothing
        self.before_create: Callable[[str], None] = _nothing
        self.watch_log: Callable[[PartitionLog], object] = _nothing
        self._by_plain_name: dict[str, list[str]] = {}
        self._changing: set[str] = set()
        self.bound = PartitionBound(config.max_partitions)
        self._data_dir = data_dir
        self._store = store
        self._config = config
        self._open_log, self._forget_offsets = open_log, forget_offsets
        self._remove = remove
        self._compaction = CompactionNotice()

    def __iter__(self) -> Iterator[Topic]:
        return iter(self.by_name.values())

    def load(
        self,
        open_log: Callable[[StoredTopic, int, Path, TopicSettings], PartitionLog],
        recovery_points: Mapping[tuple[str, int], int],
    ) -> None:
        """Finish what was begun and open every topic. Raises `StorageError` where store and directories disagree."""
        for deleted in list(self._store.deleted_topics()):
            run_at_once(self._delete_files(deleted))
        leftovers = list(self._data_dir.glob("*.deleted"))
        all_stored = self._finish_lost_deletions(leftovers)
        growing = self._store.growing_topics()
        check_directories(self._data_dir, all_stored, growing, recovery_points)
        for leftover in leftovers:
            self._remove(leftover)
        for stored in all_stored:
            topic = Topic(stored, settings_of(stored.configs, self._config))
            for partition in range(stored.partitions):
                directory = own_directory(self._data_dir, stored, partition)
                topic.logs.append(open_log(stored, partition, directory, topic.settings))
            for owner, partitions in stored.partitions_by_owner().items():
                self.bound.count_use(owner, partitions)
            self._add(topic)
        for topic_id in growing:
            self._store.forget_growing_topic(topic_id)
        self._compaction.look_at(self)

    def _finish_lost_deletions(self, leftovers: list[Path]) -> list[StoredTopic]:
        """Delete the topics whose deletion the store has lost, as when the machine goes down; return the others."""
        deleted = {leftover.name.rpartition("-")[0] for leftover in leftovers}
        kept = []
        for stored in list(self._store.topics()):
            if stored.topic_id in deleted:
                self._store.delete_topic(stored)
                run_at_once(self._delete_files(stored))
            else:
                kept.append(stored)
        return kept

    def is_taken(self, name: str) -> bool:
        """Return whether there is a topic of this name, or one is being created or deleted."""
        return name in self.by_name or name in self._changing

    def colliding(self, name: str, *, but: Container[str] = ()) -> str | None:
        """Return a topic, not in `but`, whose name differs only by periods in place of underscores or the reverse."""
        return next(
            (other for other in self._by_plain_name.get(name.replace(".", "_"), ()) if other not in but), None
        )

    def is_changing(self, topic: Topic) -> bool:
        """Return whether a topic is being extended or deleted. No other change of it begins meanwhile."""
        return topic.name in self._changing

    def settled_in_slices(self, name: str) -> Generator[None, None, Topic | None]:
        """Wait for other changes of a topic to end, then return the topic; None if there is none."""
        topic = self.by_name.get(name)
        while topic is not None and self.is_changing(topic):
            yield
            topic = self.by_name.get(name)
        return topic

    def create_in_slices(
        self, name: str, partitions: int, configs: Mapping[str, str], owner: str = UNKNOWN_OWNER
    ) -> Generator[None, None, Topic]:
        """Create a topic, a partition at a time. The name is taken first; the topic exists when complete.

        The caller has checked name, number and settings. owner: the principal that its partitions count for; the caller
        has asked `bound.problem`. If the work is aborted, nothing has changed; if the process ends, the next start
        completes the topic. Raises `StorageError`, changing nothing.
        """
        stored = StoredTopic(
            topic_id=str(uuid.uuid4()),
            name=name,
            partitions=partitions,
            configs=configs,
            owners=_with_more({}, owner, partitions),
        )
        topic = Topic(stored, settings_of(configs, self._config))
        with self._change(name), self._taken(owner, partitions):
            self.before_create(name)
            self._store.put_topic(stored, on_disk=0)
            try:
                topic.logs = yield from self._new_logs(topic, stored, range(partitions))
                self._settle(topic, topic.logs)
            except BaseException:
                self._take_back(lambda: self._store.delete_topic(stored))
                run_at_once(self._delete_files(stored))
                raise
            self._take_back(lambda: self._store.forget_growing_topic(stored.topic_id))
        self._add(topic)
        self._compaction.look_at([topic])
        return topic

    def add_partitions_in_slices(
        self, topic: Topic, count: int, owner: str = UNKNOWN_OWNER
    ) -> Generator[None, None, None]:
        """Increase a topic's partitions to `count`, more than it has, a partition at a time. All appear together.

        owner: the principal that the added partitions count for, which need not be the topic's creator. If the work is
        aborted, the next start completes it. Raises `StorageError`, changing nothing.
        """
        before = topic.stored()
        added = count - before.partitions
        grown = replace(before, partitions=count, owners=_with_more(before.owners, owner, added))
        with self._change(topic.name), self._taken(owner, added):
            self._store.put_topic(grown, on_disk=before.partitions)
            try:
                logs = yield from self._new_logs(topic, before, range(before.partitions, count))
                self._settle(topic, logs)
            except StorageError:
                self._take_back(lambda: self._store.put_topic(before))
                raise
            self._take_back(lambda: self._store.forget_growing_topic(topic.topic_id))
        topic.logs += logs
        topic.owners = grown.owners
        self._changed()

    @staticmethod
    def _take_back(change: Callable[[], None]) -> None:
        """Change the store; log a failure, which the next start repairs."""
        try:
            change()
        except StorageError as error:
            _logger.warning("%s; the next start repairs it", error)

    def alter_in_slices(self, topic: Topic, configs: Mapping[str, str]) -> Generator[None, None, None]:
        """Replace a topic's settings, which the caller has checked. Raises `StorageError`, changing nothing.

        The new settings are stored and described at once. They are applied to the logs a few at a time.
        """
        settings = settings_of(configs, self._config)
        with self._change(topic.name):
            self._store.put_topic(replace(topic.stored(), configs=configs))
        topic.configs, topic.settings = dict(configs), settings
        self._compaction.look_at([topic])
        self._changed()
        with self._change(topic.name):
            for log in topic.logs:
                log.settings = topic.settings
                self.watch_log(log)
                yield

    def follow_in_slices(self, config: StorageConfig) -> Generator[None, None, None]:
        """Follow other settings of the node in topics that have none of their own."""
        self._config = config
        for topic in list(self):
            settings = settings_of(topic.configs, config)
            if settings != topic.settings:
                topic.settings = settings
                for log in topic.logs:
                    log.settings = topic.settings
                    if not log.deleted:
                        self.watch_log(log)
                    yield
            yield
        self._compaction.look_at(self)

    def _settle(self, topic: Topic, logs: Iterable[PartitionLog]) -> None:
        """Apply the current settings to new logs of a topic: settings may have changed while the logs were made."""
        topic.settings = settings_of(topic.configs, self._config)
        for log in logs:
            log.settings = topic.settings

    def delete_in_slices(self, topic: Topic) -> Generator[None, None, None]:
        """Delete a topic and its records: the topic disappears at once, its logs and files a few at a time.

        Sends under way still read the files. Raises `StorageError`.
        """
        stored = topic.stored()
        with self._change(topic.name):
            self._store.delete_topic(stored)
        del self.by_name[topic.name]
        del self.by_id[topic.topic_id]
        plain_name = topic.name.replace(".", "_")
        self._by_plain_name[plain_name].remove(topic.name)
        if not self._by_plain_name[plain_name]:
            del self._by_plain_name[plain_name]
        for owner, partitions in stored.partitions_by_owner().items():
            self.bound.remove(owner, partitions)
        self._changed()
        for log in topic.logs:
            log.deleted = True
        with self._change(topic.name):
            for log in topic.logs:
                log.forget()
                yield
            yield from self._delete_files(stored)

    @contextmanager
    def _change(self, name: str) -> Iterator[None]:
        """Reserve a name while a topic changes. Log a change that fails."""
        self._changing.add(name)
        try:
            yield
        except StorageError as error:
            _logger.error("cannot change topic %r: %s", name, error, extra={"repeats": "topics"})
            raise
        finally:
            self._changing.remove(name)

    @contextmanager
    def _taken(self, owner: str, partitions: int) -> Iterator[None]:
        """Count partitions that are created inside; not those of a creation that fails."""
        self.bound.count_use(owner, partitions)
        try:
            yield
        except BaseException:
            self.bound.remove(owner, partitions)
            raise

    def _add(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        self._by_plain_name.setdefault(topic.name.replace(".", "_"), []).append(topic.name)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.on_change()

    def _new_logs(
        self, topic: Topic, stored: StoredTopic, numbers: range
    ) -> Generator[None, None, list[PartitionLog]]:
        """Make the logs of partitions."""
        logs: list[PartitionLog] = []
        try:
            for partition in numbers:
                yield
                directory = own_directory(self._data_dir, stored, partition)
                yield
                logs.append(self._open_log(directory, topic.settings, stored))
            yield
        except OSError as error:
            raise StorageError(
                f"cannot create partition {numbers[len(logs)]} of topic {topic.name!r}: {error}"
            ) from error
        return logs

    def _delete_files(self, stored: StoredTopic) -> Generator[None, None, None]:
        """Forget a deleted topic's offsets, move its directories out of the way, and let them be removed.

        What fails is tried again at the next start.
        """
        moved = []
        try:
            yield from self._forget_offsets(stored.name)
            for partition in range(stored.partitions):
                directory = partition_directory(self._data_dir, stored.name, partition)
                if owner_of(directory) == stored.topic_id:
                    moved.append(directory.rename(self._data_dir / f"{stored.topic_id}-{partition}.deleted"))
                yield
            self._store.forget_deleted_topic(stored.topic_id)
        except (OSError, StorageError) as error:
            _logger.warning(
                "cannot delete all files of deleted topic %r: %s; the next start tries again",
                stored.name,
                error,
            )
        for directory in moved:
            self._remove(directory)
            yield


def _with_more(owners: Mapping[str, int], owner: str, partitions: int) -> Mapping[str, int]:
    """Return the owners of a topic's partitions after one of them has added some."""
    return owners if owner == UNKNOWN_OWNER else {**owners, owner: owners.get(owner, 0) + partitions}


def _nothing(*_: object) -> None:
    """Ignore the arguments."""
