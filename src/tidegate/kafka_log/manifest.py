"""The manifest of an import directory, `import.json`: imported files, their range of time, and unfinished moves.

A file is identified by the digest of its content, not by its name: a renamed or compressed file is the same file, and
of a file that has grown only the new part is imported. New Parquet files are written beside the record. The manifest is
then saved with the place of each, and only then are they moved. The next import finishes the moves of a killed one.

A record keeps the range of time of its first import, and later imports must name it: lines are known by the digest of
their file, so requests that one import leaves out are not found again by a later one with another range.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import ConfigError
from tidegate.kafka_log.merge import PlacedEvent
from tidegate.usage.directory import make_private_directory, sync_directory, write_private_file
from tidegate.usage.files import HOUR_US, IMPORT_MANIFEST

__all__ = ["HEAD_BYTES", "ImportedFile", "Manifest", "TimeRange", "time_text"]

HEAD_BYTES = 4096
"""Bytes at the beginning of a file, by whose digest files are found that may be the same."""

_MANIFEST_BYTES_MAX = 1 << 30
_US_PER_MS = 1000
_ALWAYS_US = -(2**62)
_BEHIND_START = (
    -1
)  # the line of quotas that were set before the range: behind `events_before`, before all requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFile:
    """An imported file: digests of its head and of the `size` bytes (uncompressed) that were imported."""

    node_id: int
    name: str
    head: str
    digest: str
    size: int


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The files imported so far, what is not exact in their rows, and the changes that are not finished.

    topics: numbers of partitions by node and topic; topic_names: names of topics by id; from_ms, to_ms: the range of
    the requests that were imported, None: no limit.
    """

    files: list[ImportedFile] = field(default_factory=list)
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    topic_names: dict[str, str] = field(default_factory=dict)
    estimated_fetches: int = 0
    unpriced: int = 0
    from_ms: int | None = None
    to_ms: int | None = None
    moves: list[tuple[str, str, list[str]]] = field(default_factory=list)

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """Read the manifest of a directory, an empty one where nothing was imported. Raises `ConfigError`."""
        path = directory / IMPORT_MANIFEST
        try:
            with path.open("rb") as file:
                found: dict[str, Any] = json.loads(file.read(_MANIFEST_BYTES_MAX))
            files = [ImportedFile(**entry) for entry in found.pop("files")]
            for name in ("from_ms", "to_ms"):
                if not isinstance(found.get(name), int | None):
                    raise ValueError(f"{name} is {found[name]!r}, expected a time in ms or null")
            return cls(files=files, **found)
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{str(path)!r} is not a valid import manifest: {error}",
                hint="use an empty directory, or one that `tidegate import` wrote",
            ) from None

    def save(self, directory: Path) -> None:
        """Write the manifest, in place of the existing one."""
        write_private_file(directory / IMPORT_MANIFEST, json.dumps(asdict(self), indent=1).encode())

    def files_that_begin_like(self, node_id: int, head: str) -> list[ImportedFile]:
        """Return the files of a node that may begin like one with `head`, the longest first."""
        found = [file for file in self.files
                 if file.node_id == node_id and (file.head == head or file.size < HEAD_BYTES)]  # fmt: skip
        return sorted(found, key=lambda file: -file.size)

    def finish(self, directory: Path) -> None:
        """Move files that are not yet in their places in the manifest, and delete the files that they supersede."""
        if not self.moves:
            return
        for made, place, superseded in self.moves:
            target = directory / place
            if (directory / made).exists():
                make_private_directory(target.parent)
                os.replace(directory / made, target)
            for name in superseded:
                if name != place:
                    (directory / name).unlink(missing_ok=True)
            sync_directory(target.parent)
        self.moves = []
        self.save(directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """Requests from `from_ms` on and before `to_ms`; None: no limit.

    >>> half = TimeRange(from_ms=1_800_000, to_ms=3_600_000)
    >>> half.holds(1_800_000_000), half.holds(3_600_000_000), half.may_hold_hour(1), str(half)
    (True, False, False, '--from 1970-01-01T00:30:00Z --to 1970-01-01T01:00:00Z')
    """

    from_ms: int | None = None
    to_ms: int | None = None

    def holds(self, decided_us: int) -> bool:
        """Return whether a time is in the range."""
        return self._from_us <= decided_us and (self.to_ms is None or decided_us < self.to_ms * _US_PER_MS)

    def may_hold_hour(self, hour: int) -> bool:
        """Return whether some time of an hour, counted since 1970, is in the range."""
        first_us = hour * HOUR_US
        return self._from_us < first_us + HOUR_US and (
            self.to_ms is None or first_us < self.to_ms * _US_PER_MS
        )

    def times_in(self, decided_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of the times that are in the range."""
        return decided_us[self._mask(decided_us)]

    def requests_in(self, requests: pa.Table) -> pa.Table:
        """Return the rows whose `decided_us` is in the range."""
        return requests.filter(pa.array(self._mask(requests.column("decided_us").to_numpy())))

    def quotas_before(self, events: Sequence[PlacedEvent], first_us: int) -> list[PlacedEvent]:
        """Return the quotas that were set before the range, each with its last value, placed before `first_us`."""
        latest: dict[tuple[object, ...], PlacedEvent] = {}
        for event in sorted(events, key=lambda event: (event.decided_us, event.line)):
            if event.columns["kind"] == "quota" and event.decided_us < self._from_us:
                names = (event.columns.get(name) for name in _QUOTA_NAMES)
                latest[*names] = PlacedEvent(first_us, _BEHIND_START, True, event.columns)
        return list(latest.values())

    @property
    def _from_us(self) -> int:
        return _ALWAYS_US if self.from_ms is None else self.from_ms * _US_PER_MS

    def _mask(self, decided_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        mask = decided_us >= self._from_us
        return mask if self.to_ms is None else mask & (decided_us < self.to_ms * _US_PER_MS)

    def __str__(self) -> str:
        """Return the options of the command that name this range; no text for no limits."""
        ends = (("--from", self.from_ms), ("--to", self.to_ms))
        return " ".join(f"{option} {time_text(at_ms)}" for option, at_ms in ends if at_ms is not None)


_QUOTA_NAMES = ("quota_user", "quota_client_id", "quota_ip", "quota_key")


def time_text(at_ms: int) -> str:
    """Return a time as the options of ranges take it.

    >>> time_text(1_700_000_000_500)
    '2023-11-14T22:13:20.500Z'
    """
    spec = "milliseconds" if at_ms % 1000 else "seconds"
    at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    return at.isoformat(timespec=spec).replace("+00:00", "Z")
