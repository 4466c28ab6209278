"""Where a watch in one process goes on after it has ended, however: one file, replaced whole.

Offsets, the state of each node and the totals belong together, so what was counted is in all of them or in none.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tidegate.errors import ConfigError
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.watch.node import NodeWatch, dumped, loaded
from tidegate.pipeline.watch.totals import Totals
from tidegate.usage.directory import lock_file, make_private_directory, write_private_file

__all__ = ["Checkpoint", "WatchState"]

_VERSION = 1
_STATE = "watch"
_LOCK = "lock"


@dataclass(slots=True, kw_only=True)
class WatchState:
    """All that a watch has to know. from_ms: rows of earlier hours are not read.

    On Spark, which has offsets and nodes itself, `last_batch` is the last one that is in the totals.
    """

    directory: str
    plans: Sequence[Plan]
    totals: Totals
    from_ms: int | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, NodeWatch] = field(default_factory=dict)
    last_batch: int = -1
    version: int = _VERSION


class Checkpoint:
    """A directory of one watch at a time. Raises `ConfigError` where another one holds it, `OSError`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / _STATE
        make_private_directory(directory)
        lock = lock_file(directory / _LOCK)
        if lock is None:
            raise ConfigError(f"another watch is at work on the checkpoint {str(directory)!r}")
        self._lock = lock

    def __enter__(self) -> "Checkpoint":
        """Hold the directory."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of it."""
        os.close(self._lock)

    def read(self, *, directory: Path, plans: Sequence[Plan]) -> WatchState | None:
        """Return what was written last; None: nothing. Raises `ConfigError` where that is of something else."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        state = loaded(data)
        if not isinstance(state, WatchState) or state.version != _VERSION:
            raise self._unusable("is of another version of Tidegate")
        if state.directory != str(directory.resolve()):
            raise self._unusable(f"is of the record {state.directory!r}")
        if repr(list(state.plans)) != repr(list(plans)):  # a limit may be NaN
            names = ", ".join(repr(plan.name) for plan in state.plans)
            raise self._unusable(f"is of other plans (called {names})")
        return state

    def write(self, state: WatchState) -> None:
        """Put a state in the place of the one before, on disk. Raises `OSError`."""
        write_private_file(self._path, dumped(state))

    def _unusable(self, reason: str) -> ConfigError:
        where = str(self._path.parent)
        return ConfigError(f"the checkpoint {where!r} {reason}", hint="begin with another directory")
