"""Request logs of Apache Kafka become a usage record: `tidegate.pipeline.import_request_log`."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidegate.config.quotas_file import QuotasFile, load_quotas_file
from tidegate.errors import ArgumentError, ConfigError
from tidegate.kafka_log.import_summary import ImportSummary
from tidegate.kafka_log.importing import import_logs
from tidegate.kafka_log.log_files import Source
from tidegate.kafka_log.manifest import TimeRange
from tidegate.pipeline.arguments import Path_, Time, check_whole, local_path, range_ms
from tidegate.pipeline.progress import OnProgress, Progress, silent

__all__ = ["import_request_log"]


def import_request_log(
    paths: Path_ | Sequence[Path_] | Mapping[int, Path_ | Sequence[Path_]],
    *,
    out: Path_,
    start: Time | None = None,
    end: Time | None = None,
    last: timedelta | str | None = None,
    node_id: int = 1,
    time_zone: str = "UTC",
    in_force: Path_ | QuotasFile | None = None,
    strict: bool = False,
    processes: int | None = None,
    progress: OnProgress | None = None,
) -> ImportSummary:
    """Add the new requests in logs of Apache Kafka to the usage record at `out`, and return their number and more.

    paths: log files, or directories of them, plain or gzip; a mapping has them by node id. start, end, last: import
    only requests of this range, as in `usage`; the record keeps the range of its first import. node_id: of the broker
    that wrote logs without one. time_zone: of the times in the logs, such as Europe/Berlin. in_force: the quotas that
    were set before the first request. strict: import nothing if a file is damaged. processes: how many parse
    lines; None chooses. progress: called with the bytes that were read. Lines that were imported before are skipped.

    Raises `TidegateError`.
    """
    on_progress = silent if progress is None else progress
    if not callable(on_progress):
        raise ArgumentError(f"progress must be a function, got {progress!r}")
    if processes is not None:
        check_whole(processes, "processes", 1)
    from_ms, to_ms, last_ms = range_ms(start, end, last)

    def show(path: Path, done: int, total: int) -> None:
        on_progress(Progress(path.name, done, total))

    return import_logs(
        _sources(paths, node_id),
        local_path(out, "out"),
        zone=_zone(time_zone),
        in_force=None if in_force is None else _in_force(in_force),
        processes=processes,
        strict=strict,
        wanted=TimeRange(from_ms=from_ms, to_ms=to_ms),
        last_ms=last_ms,
        on_progress=show,
    )


def _sources(
    paths: Path_ | Sequence[Path_] | Mapping[int, Path_ | Sequence[Path_]], node_id: int
) -> list[Source]:
    by_node = paths.items() if isinstance(paths, Mapping) else [(node_id, paths)]
    found = []
    for number, logs in by_node:
        check_whole(number, "a node id", 0)
        several: Sequence[Any] = logs if isinstance(logs, list | tuple) else [logs]
        found += [Source(number, local_path(path, "paths")) for path in several]
    if not found:
        raise ArgumentError("paths must name a log, got none")
    return found


def _in_force(quotas: Path_ | QuotasFile) -> QuotasFile:
    name = "in_force" if isinstance(quotas, QuotasFile) else repr(str(quotas))
    file = quotas if isinstance(quotas, QuotasFile) else load_quotas_file(local_path(quotas, "in_force"))
    if (part := file.beyond_kafka()) is not None:
        raise ConfigError(
            f"{name} contains {part}, which Apache Kafka does not have", hint="use a file without it"
        )
    return file


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise ConfigError(
            f"unknown time zone {name!r}", hint="write a name such as Europe/Berlin, America/New_York or UTC"
        ) from None
