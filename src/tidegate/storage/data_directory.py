"""The data directory before it is opened: its lock and database, the machine's boot, the open-files limit."""

import contextlib
import fcntl
import logging
import os
import resource
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

from tidegate.open_files import raise_open_files_limit
from tidegate.storage.errors import StorageError
from tidegate.storage.metadata.consistency import check_owner
from tidegate.storage.metadata.store import MetadataStore
from tidegate.storage.private_files import PRIVATE_FILE

__all__ = [
    "DATABASE",
    "NO_BOOT",
    "current_boot_id",
    "lock_directory",
    "new_cluster_id",
    "opened_store",
    "prepare_open_files",
]

_OTHER_FILES = 1_000  # left for connections and other files when all permitted partitions exist
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DATABASE = "tidegate.db"
NO_BOOT = ""
_logger = logging.getLogger("tidegate.storage.storage")  # that of the storage


@contextlib.contextmanager
def opened_store(directory: Path) -> Iterator[MetadataStore]:
    """Open the metadata of a data directory that no broker uses, and keep brokers out meanwhile.

    Raises `StorageError` where there is none, or a broker is running on it.
    """
    database = directory / DATABASE
    if not database.is_file():
        raise StorageError(
            f"{str(directory)!r} is not a data directory of a broker: it has no {DATABASE}",
            hint="use the directory of --data (log.dirs)",
        )
    check_owner(directory, database)
    with contextlib.ExitStack() as closing:
        closing.callback(os.close, lock_directory(directory))
        yield closing.enter_context(contextlib.closing(MetadataStore(database)))


def lock_directory(directory: Path) -> int:
    """Lock a data directory and return the descriptor that holds the lock. Raises `StorageError` if it is in use."""
    fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise StorageError(
            f"data directory {str(directory)!r} is in use by another process",
            hint="stop the other broker, or use another directory (--data, log.dirs)",
        ) from error
    return fd


def prepare_open_files(partitions: int) -> None:
    """Raise the limit of open files: a partition and a connection need one. Warn if it is too low for `partitions`."""
    most = raise_open_files_limit()
    if most != resource.RLIM_INFINITY and most < partitions + _OTHER_FILES:
        _logger.warning(
            "limit of open files is %d, too low for tidegate.max.partitions=%d: each partition and connection needs "
            "a file; hint: raise the hard limit (ulimit -Hn), or lower the setting",
            most,
            partitions,
        )


def current_boot_id() -> str:
    """Return the id of the machine's boot, `NO_BOOT` where the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return NO_BOOT


def new_cluster_id() -> str:
    """Return a UUID in URL-safe base 64, as Kafka writes it."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
