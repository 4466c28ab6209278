"""The files of a usage record are merged: `tidegate.pipeline.compact`."""

import errno
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.kafka_log.import_directory import finished_import
from tidegate.pipeline.arguments import Path_, Time, local_path, location_to_read, range_ms
from tidegate.usage.compaction import Compacted, compact_record
from tidegate.usage.files import IMPORT_MANIFEST

__all__ = ["compact", "compact_range"]


def compact(
    path: Path_, *, start: Time | None = None, end: Time | None = None, last: timedelta | str | None = None
) -> Compacted:
    """Merge the files of a usage record, including its spool, into one file per hour and node; return their numbers.

    path: the usage directory of a stopped broker, of an import or a copy. start, end, last: as in `usage`; all hours
    that the range touches are merged. `damaged` and `unreadable` of the result count and name what was left as it was.
    Raises `TidegateError`, also if a broker, its writer or an import uses the record.
    """
    return compact_range(local_path(location_to_read(path, "path"), "path"), *range_ms(start, end, last))


def compact_range(directory: Path, from_ms: int | None, to_ms: int | None, last_ms: int | None) -> Compacted:
    """Merge the files of a range of time, as `compact` does; see `compact_record`. Raises `ConfigError`."""
    try:
        with finished_import(directory) if (directory / IMPORT_MANIFEST).is_file() else nullcontext():
            return compact_record(directory, from_ms=from_ms, to_ms=to_ms, last_ms=last_ms)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise ConfigError(
            f"cannot compact {str(directory)!r}: {error.strerror or error}",
            hint="free disk space, then run the command again: no row is lost"
            if is_full
            else "run the command as a user that may write to the directory",
        ) from error
