"""Compile the replay kernel in a process of its own, while Spark starts, where it has not been compiled before.

The open loop and the closed one are compiled apart, ten to twenty seconds each. By hand, for an image or a cluster's
node: `python -m tidegate.pipeline.replay.warm_up` compiles both, with `open` or `closed` behind it one of them.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from tidegate.child_python import module_command
from tidegate.pipeline.layout import ROW_TYPES, Rows
from tidegate.pipeline.read.packing import pack, unpack
from tidegate.pipeline.read.timeline import empty_timeline
from tidegate.pipeline.replay.closed_loop_kernel import CLOSED_LOOP_MODULES, run
from tidegate.pipeline.replay.compiled import cache_directory
from tidegate.pipeline.replay.kernel import KERNEL_MODULES, replay
from tidegate.pipeline.replay.partition import Partition, ReplayTask
from tidegate.pipeline.replay.plan import Plan

__all__ = ["CLOSED", "OPEN", "compile_replay_kernel", "kernel_at_hand", "kernel_in_the_making"]

OPEN, CLOSED = "open", "closed"
_LAST_COMPILED: Mapping[str, tuple[Sequence[ModuleType], Callable[..., Any]]] = {
    OPEN: (KERNEL_MODULES, replay),
    CLOSED: (CLOSED_LOOP_MODULES, run),
}
"""By loop: the modules that go into its kernel, and what is compiled last of it."""


@contextmanager
def kernel_in_the_making(plans: Iterable[Plan]) -> Iterator[None]:
    """Have compiled meanwhile what a replay of the plans takes; does nothing where it was before."""
    missing = _not_compiled(plans)
    if not missing:
        yield
        return
    command = module_command(__spec__.name, *missing)
    compiler = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        compiler.kill()  # if it is still at it, the executors were faster
        compiler.wait()


def kernel_at_hand(plans: Iterable[Plan]) -> None:
    """Have compiled what a replay of the plans takes, and say so on a terminal where that takes its time."""
    for loop in _not_compiled(plans):
        with Console(stderr=True).status(
            f"compiling the {loop} loop of the replay, once: some twenty seconds"
        ):
            compile_replay_kernel(loop)


def compile_replay_kernel(loop: str = OPEN) -> None:
    """Compile the kernel of a loop for the types that it meets on Spark, by replaying one row."""
    (block,) = pack(Rows._make(np.zeros(1, dtype) for dtype in ROW_TYPES), np.array([0, 1]))
    task = ReplayTask(
        plans=(Plan(name="", records=(), is_closed=loop == CLOSED),),
        users=pa.array([""]),
        client_ids=pa.array([""]),
        first_client=np.array([0, 1]),
        node_id=np.array([0]),
        task=np.zeros(1, np.int64),
        timelines={0: empty_timeline()},
    )
    Partition(task, 0).replay(unpack(block.data, block.rows))


def _not_compiled(plans: Iterable[Plan]) -> list[str]:
    """Return the loops that the plans are replayed in and that are not kept from before."""
    loops = {CLOSED if plan.is_closed else OPEN for plan in plans}
    return [loop for loop in _LAST_COMPILED if loop in loops and not _is_compiled(loop)]


def _is_compiled(loop: str) -> bool:
    modules, last = _LAST_COMPILED[loop]
    return any(cache_directory(os.environ, modules).rglob(f"*.{last.__name__}-*.nbc"))


if __name__ == "__main__":
    for wanted in sys.argv[1:] or _LAST_COMPILED:
        compile_replay_kernel(wanted)
