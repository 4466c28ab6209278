"""Run kernels as Python for small input, otherwise compiled; and compile them ahead.

Each kernel is compiled separately, which takes ten to thirty seconds: the open loop of the replay, the closed loop,
both with smooth mode, and the sums of usage. `tidegate warm-up` compiles them ahead. If a kernel is not compiled, the
same functions process small input as Python, with equal results, while a background process compiles for later commands
(decision 0134). On Spark, a process compiles while Spark starts. The compiled kernel of usage is loaded by a thread.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console

from tidegate.child_python import module_command
from tidegate.pipeline.layout import ROW_TYPES, Rows
from tidegate.pipeline.progress import OnProgress, Progress
from tidegate.pipeline.read.packing import pack, unpack
from tidegate.pipeline.read.timeline import Timeline, empty_timeline
from tidegate.pipeline.replay.kernel.beyond_kafka import REPLAY_MODULES, RUN_MODULES
from tidegate.pipeline.replay.kernel.closed_loop import CLOSED_LOOP_MODULES, run
from tidegate.pipeline.replay.kernel.compiled import cache_base, cache_directory, interpret
from tidegate.pipeline.replay.kernel.open_loop import KERNEL_MODULES, replay
from tidegate.pipeline.replay.partition import Members, Partition
from tidegate.pipeline.replay.plan import Plan, is_beyond_kafka
from tidegate.pipeline.rollup import kernel as rollup_kernel
from tidegate.pipeline.rollup.parts import compile_usage_kernel
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.managers.extensions import SMOOTH

__all__ = [
    "CLOSED",
    "CLOSED_SMOOTH",
    "KERNEL_NAMES",
    "OPEN",
    "OPEN_SMOOTH",
    "USAGE",
    "compile_kernel_named",
    "compile_later",
    "compile_replay_kernel",
    "kernel_at_hand",
    "kernel_in_the_making",
    "load_usage_kernel",
    "smooth_mode_at_hand",
]

OPEN, CLOSED, USAGE = "open", "closed", "usage"
OPEN_SMOOTH, CLOSED_SMOOTH = "open-smooth", "closed-smooth"

INTERPRETED_DECISIONS = 50_000
"""Largest product of rows, plans and replays that is replayed as Python: 2 s, or 30 s if most are throttled."""
INTERPRETED_ROWS = 200_000
"""Most rows whose usage is added up as Python: 3 seconds."""

_ONCE = "--once"
_BUSY = "compiling"  # a lock file: one process compiles in the background
_NICE = 19
_BACKGROUND: list[
    "subprocess.Popen[bytes]"
] = []  # keeps the objects: a deleted one would warn that its process still runs


class _Kernel(NamedTuple):
    """A kernel: its modules, the function that is compiled last, the one that compiles all, and a name for messages."""

    modules: Sequence[ModuleType]
    last: Callable[..., Any]
    make: Callable[[], None]
    what: str


@contextmanager
def kernel_in_the_making(plans: Iterable[Plan], *, with_usage: bool = False) -> Iterator[None]:
    """Compile the kernels that the plans and `with_usage` need, in another process; skip those compiled before."""
    missing = _not_compiled(plans, with_usage=with_usage)
    if not missing:
        yield
        return
    compiler = _started(*missing)
    try:
        yield
    finally:
        compiler.kill()  # if it is still at it, the executors were faster
        compiler.wait()


def kernel_at_hand(
    plans: Iterable[Plan],
    *,
    timelines: Iterable[Timeline] = (),
    with_usage: bool = False,
    rows: int | None = None,
    on_progress: OnProgress | None = None,
) -> None:
    """Prepare the kernels that the plans and `with_usage` need; skip compiled ones.

    timelines: those of the record, if the quotas in force are already known. rows: what is added up, or decided by all
    plans; few of them are processed as Python if a kernel is not compiled. None: not known, compile. on_progress: None
    shows a status on a terminal.
    """
    missing = _not_compiled(plans, timelines, with_usage=with_usage)
    most = INTERPRETED_ROWS if with_usage else INTERPRETED_DECISIONS
    if missing and rows is not None and rows <= most:
        interpret()
        compile_later(missing)
        return
    for name in missing:
        kernel = _KERNELS[name]
        what = f"compiling {kernel.what} (once, about 20 seconds)"
        if on_progress is not None:
            on_progress(Progress(what, 0, None))
        with nullcontext() if on_progress is not None else Console(stderr=True).status(what):
            kernel.make()


def load_usage_kernel() -> Callable[[], object]:
    """Begin to load the kernel of usage, if it is compiled; return a function that waits for it.

    Loading takes some tenths of a second, most of it for numba; meanwhile other threads can read files.
    """
    if not _is_compiled(_KERNELS[USAGE]):
        return lambda: None
    pool = ThreadPoolExecutor(1)
    loading = pool.submit(compile_usage_kernel)
    pool.shutdown(wait=False)
    return loading.result


def compile_later(names: Iterable[str]) -> None:
    """Start a process that compiles kernels in the background, and continues when this process has ended.

    Without a cache that can be written, no process is started.
    """
    base = cache_base(os.environ)
    with suppress(OSError):
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(base, os.W_OK | os.X_OK) and not _is_busy(base):
            _BACKGROUND.append(_started(_ONCE, *names, start_new_session=True))


def compile_kernel_named(name: str) -> bool:
    """Compile a kernel of `KERNEL_NAMES` and keep it. Return False if it has been compiled before."""
    if _is_compiled(_KERNELS[name]):
        return False
    _KERNELS[name].make()
    return True


def smooth_mode_at_hand(
    plans: Iterable[Plan], timelines: Iterable[Timeline], on_progress: OnProgress | None = None
) -> None:
    """Compile the smooth-mode kernel if a plan is the quotas in force and smooth mode was on.

    On Spark and in a watch this is known only when the record is read. on_progress: None writes a line to stderr.
    """
    if not any(plan.is_in_force for plan in plans) or not any(map(_was_beyond_kafka, timelines)):
        return
    kernel = _KERNELS[OPEN_SMOOTH]
    if not _is_compiled(kernel):
        what = f"compiling {kernel.what} (once, about 20 seconds)"
        if on_progress is None:
            print(what, file=sys.stderr, flush=True)
        else:
            on_progress(Progress(what, 0, None))
        kernel.make()


def compile_replay_kernel(kernel: str = OPEN) -> None:
    """Compile a kernel of the replay for the types that it meets on Spark, by replaying one row."""
    (block,) = pack(Rows._make(np.zeros(1, dtype) for dtype in ROW_TYPES), np.array([0, 1]))
    members = Members(node_id=0, users=pa.array([""]), client_ids=pa.array([""]), timeline=empty_timeline())
    records = (
        (QuotaRecord(entity=(), key=SMOOTH, value=1.0),) if kernel in (OPEN_SMOOTH, CLOSED_SMOOTH) else ()
    )
    plan = Plan(name="", records=records, is_closed=kernel in (CLOSED, CLOSED_SMOOTH))
    Partition([plan], members).replay(unpack(block.data, block.rows))


_KERNELS: Mapping[str, _Kernel] = {
    OPEN: _Kernel(KERNEL_MODULES, replay, compile_replay_kernel, "the open-loop replay"),
    CLOSED: _Kernel(
        CLOSED_LOOP_MODULES, run, partial(compile_replay_kernel, CLOSED), "the closed-loop replay"
    ),
    OPEN_SMOOTH: _Kernel(
        REPLAY_MODULES,
        replay,
        partial(compile_replay_kernel, OPEN_SMOOTH),
        "the open-loop replay with smooth mode",
    ),
    CLOSED_SMOOTH: _Kernel(
        RUN_MODULES,
        run,
        partial(compile_replay_kernel, CLOSED_SMOOTH),
        "the closed-loop replay with smooth mode",
    ),
    USAGE: _Kernel(
        rollup_kernel.KERNEL_MODULES, rollup_kernel.measure, compile_usage_kernel, "the aggregation of usage"
    ),
}

KERNEL_NAMES: Mapping[str, str] = {name: kernel.what for name, kernel in _KERNELS.items()}
"""The jobs that use each kernel, for messages."""


def _not_compiled(
    plans: Iterable[Plan], timelines: Iterable[Timeline] = (), *, with_usage: bool
) -> list[str]:
    """Return the kernels that are needed and not compiled yet."""
    plans = list(plans)
    wanted = {_kernel_of(plan) for plan in plans} | ({USAGE} if with_usage else set())
    if any(plan.is_in_force for plan in plans) and any(map(_was_beyond_kafka, timelines)):
        wanted.add(OPEN_SMOOTH)
    return [name for name in _KERNELS if name in wanted and not _is_compiled(_KERNELS[name])]


def _kernel_of(plan: Plan) -> str:
    if plan.is_beyond_kafka:
        return CLOSED_SMOOTH if plan.is_closed else OPEN_SMOOTH
    return CLOSED if plan.is_closed else OPEN


def _was_beyond_kafka(timeline: Timeline) -> bool:
    """Return whether settings beyond Kafka were in force, for which the quotas in force need another kernel."""
    return bool(timeline.steps.where(lambda step: step.record is not None and is_beyond_kafka(step.record)))


def _is_compiled(kernel: _Kernel) -> bool:
    directory = cache_directory(os.environ, kernel.modules)
    return any(directory.rglob(f"*.{kernel.last.__name__}-*.nbc"))


def _started(*arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process of this module."""
    nothing = subprocess.DEVNULL
    command = module_command(__spec__.name, *arguments)
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, **options)


def _is_busy(base: Path) -> bool:
    """Return whether a process compiles in the background."""
    with _locked(base) as is_ours:
        return not is_ours


@contextmanager
def _locked(base: Path) -> Iterator[bool]:
    """Yield whether this process alone compiles in the background during the block."""
    with open(base / _BUSY, "w") as busy:
        try:
            fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _compile_in_background(names: Iterable[str]) -> None:
    """Compile kernels that are not compiled, at the lowest priority, unless another process does so already."""
    with _locked(cache_base(os.environ)) as is_ours:
        if is_ours:
            os.nice(_NICE)
            for name in names:
                compile_kernel_named(name)


def main(arguments: Sequence[str]) -> None:
    """Compile the named kernels, or all."""
    if arguments[:1] == [_ONCE]:
        _compile_in_background(arguments[1:])
        return
    for name in arguments or KERNEL_NAMES:
        _KERNELS[name].make()


if __name__ == "__main__":
    main(sys.argv[1:])
