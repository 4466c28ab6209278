"""The checkpoint from which a watch in one process resumes, however it ended: one file, replaced as a whole.

Offsets, the state of each node and the totals are stored together, so each row is counted in all of them or in none.
The file is one pickle that only `loaded` reads: it creates the classes that a watch consists of, and calls nothing
else. The contents of these objects are not checked, so trust a checkpoint only as far as the programs that you run.

The first line names the layout of these classes, so that a checkpoint of another version of Tidegate is refused with
that reason.
"""

import functools
import hashlib
import io
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tidegate.config.windows import Windows
from tidegate.errors import ConfigError
from tidegate.pipeline import layout
from tidegate.pipeline.read.answers import Answer, Answers
from tidegate.pipeline.read.steps import SensorState, Step, Steps
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.plan import Definitions, Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.state.accounts import AccountTable, Limit
from tidegate.pipeline.replay.state.keys import NameNumbers, SensorKeys
from tidegate.pipeline.replay.state.lookup import Lookup
from tidegate.pipeline.replay.state.permits import PendingPermits
from tidegate.pipeline.replay.state.plan_state import PlanState
from tidegate.pipeline.replay.state.sensors import Sensors
from tidegate.pipeline.replay.state.settings import SettingsBeyondKafka
from tidegate.pipeline.replay.state.stated import StatedSensors
from tidegate.pipeline.replay.state.tables import SensorTable
from tidegate.pipeline.watch.node import NodeWatch
from tidegate.pipeline.watch.totals import Totals
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.entity import Default, EntityQuotas, Level, QuotaEntity
from tidegate.quota.admin.entity_selection import EntitySelection
from tidegate.quota.admin.groups import Groups
from tidegate.quota.managers.extensions import Extensions
from tidegate.quota.measure.smooth import SmoothMode
from tidegate.quota.measure.window import QuotaWindow
from tidegate.usage.directory import lock_file, make_private_directory, write_private_file

__all__ = ["Checkpoint", "WatchState", "dumped", "loaded"]

_VERSION = 6
"""Increased when the meaning of a part changes and its fields do not."""
_FIRST_LINE = b"tidegate watch "
_STATE = "watch"
_LOCK = "lock"


@dataclass(slots=True, kw_only=True)
class WatchState:
    """The whole state of a watch. from_ms: earlier rows are not counted, and rows of earlier hours are not read.

    On Spark, which has offsets and nodes itself, `last_batch` is the last one that is in the totals.
    """

    directory: str
    plans: Sequence[Plan]
    totals: Totals
    from_ms: int | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, NodeWatch] = field(default_factory=dict)
    last_batch: int = -1


class Checkpoint:
    """A directory that one watch uses at a time. All methods raise `ConfigError` if it is in use or cannot be used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / _STATE
        with self._errors():
            make_private_directory(directory)
            lock = lock_file(directory / _LOCK)
        if lock is None:
            raise self._unusable("is in use by another watch")
        self._lock = lock

    def __enter__(self) -> "Checkpoint":
        """Hold the directory."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the directory."""
        os.close(self._lock)

    def read(self, *, directory: Path, plans: Sequence[Plan]) -> WatchState | None:
        """Return the latest state; None if there is none. Raises `ConfigError` if it is of another record or plan."""
        with self._errors():
            data = self._path.read_bytes() if self._path.exists() else None
        if data is None:
            return None
        state = loaded(self._state_of(data))
        if not isinstance(state, WatchState) or not hasattr(state, "last_batch"):
            raise _unreadable()
        if state.directory != str(directory.resolve()):
            raise self._unusable(f"belongs to the record {state.directory!r}")
        if repr(list(state.plans)) != repr(list(plans)):  # a limit may be NaN
            names = ", ".join(repr(plan.name) for plan in state.plans)
            raise self._unusable(f"belongs to other plans: {names}")
        return state

    def write(self, state: WatchState) -> None:
        """Replace the previous state on disk with this one."""
        with self._errors():
            write_private_file(self._path, b"%b%b\n%b" % (_FIRST_LINE, _layout(), dumped(state)))

    def _state_of(self, data: bytes) -> bytes:
        """Return what follows the first line. Raises `ConfigError` for another version of Tidegate."""
        first, _, state = data.partition(b"\n")
        if first == _FIRST_LINE + _layout():
            return state
        if first.startswith(_FIRST_LINE):
            found = first.removeprefix(_FIRST_LINE)[:40].decode("ascii", "replace")
            expected = _layout().decode()
            raise self._unusable(
                f"was written by another version of Tidegate (layout {found}, expected {expected})"
            )
        if data.startswith(_PICKLE):
            raise self._unusable("was written by an earlier version of Tidegate")
        raise _unreadable()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unusable(f"cannot be used: {error.strerror or error}") from error

    def _unusable(self, reason: str) -> ConfigError:
        where = str(self._path.parent)
        return ConfigError(
            f"the checkpoint {where!r} {reason}", hint="use another directory for --checkpoint"
        )


def dumped(state: object) -> bytes:
    """Return a state as bytes."""
    return pickle.dumps(state, protocol=5)


def loaded(data: bytes) -> Any:
    """Return the state that `dumped` has written. Raises `ConfigError` for any other bytes."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:
        # Damaged bytes can make `pickle` raise almost any exception.
        raise _unreadable() from error


def _unreadable() -> ConfigError:
    return ConfigError(
        "the checkpoint is damaged, or another version of Tidegate wrote it",
        hint="use another directory for --checkpoint",
    )


_PARTS = {
    (part.__module__, part.__qualname__): part
    for part in (
        WatchState, Totals, NodeWatch, Plan, Windows, QuotaWindow, QuotaRecord,
        PlanReplay, PlanState, Lookup, Sensors, PendingPermits, Definitions, Groups, EntityQuotas, QuotaEntity, Default,
        Level, Timeline, Steps, Step, Answer, Answers, SensorState, StatedSensors, SensorTable, SensorKeys,
        NameNumbers, AccountTable, Limit, SettingsBeyondKafka, Extensions, EntitySelection, SmoothMode,
    )
}  # fmt: skip
_PICKLE = b"\x80"  # how checkpoints without a first line begin


@functools.cache
def _layout() -> bytes:
    """Return the identification of a checkpoint's layout: the version, and a digest of the fields of all parts."""
    columns = {name: value for name, value in vars(layout).items() if isinstance(value, int)}
    text = repr((sorted((name, _fields(part)) for name, part in _PARTS.items()), sorted(columns.items())))
    return f"{_VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:12]}".encode()


def _fields(part: type) -> list[str]:
    """Return the fields of a class; of one without slots, all names that making an object of it uses."""
    names = {name for each in part.__mro__ for name in getattr(each, "__slots__", ())}
    names.update(getattr(part, "_fields", ()), getattr(part, "__annotations__", ()))
    code = getattr(vars(part).get("__init__"), "__code__", None)
    return sorted(names or (code.co_names if code is not None else ()))


_PARTS_OF_ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
}


class _Unpickler(pickle.Unpickler):
    """Makes the parts of a checkpoint and arrays, and nothing else: a checkpoint is input."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PARTS_OF_ARRAYS:
            return super().find_class(module, name)
        try:
            return _PARTS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a checkpoint") from None
