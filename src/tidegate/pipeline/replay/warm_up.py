"""Compile the replay kernel in a process of its own, while Spark starts, where it has not been compiled before.

`python -m tidegate.pipeline.replay.warm_up` does the same by hand, for an image or a cluster node.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from rich.console import Console

from tidegate.child_python import module_command
from tidegate.pipeline.layout import ROW_TYPES, Rows
from tidegate.pipeline.read.packing import pack, unpack
from tidegate.pipeline.read.timeline import empty_timeline
from tidegate.pipeline.replay.compiled import cache_directory
from tidegate.pipeline.replay.kernel import KERNEL_MODULES
from tidegate.pipeline.replay.partition import Partition, ReplayTask
from tidegate.pipeline.replay.plan import Plan

__all__ = ["compile_replay_kernel", "kernel_at_hand", "kernel_in_the_making"]


@contextmanager
def kernel_in_the_making() -> Iterator[None]:
    """Have the kernel compiled meanwhile; does nothing where it was before."""
    if _is_compiled():
        yield
        return
    command = module_command("tidegate.pipeline.replay.warm_up")
    compiler = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        compiler.kill()  # if it is still at it, the executors were faster
        compiler.wait()


def kernel_at_hand() -> None:
    """Have the kernel compiled for this process, and say so on a terminal where that takes its time."""
    if _is_compiled():
        return
    with Console(stderr=True).status("compiling the replay kernel, once: some ten seconds"):
        compile_replay_kernel()


def compile_replay_kernel() -> None:
    """Compile the kernel for the types that it meets on Spark, by replaying one row."""
    (block,) = pack(Rows._make(np.zeros(1, dtype) for dtype in ROW_TYPES), np.array([0, 1]))
    task = ReplayTask(
        plans=(Plan(name="", records=()),),
        users=pa.array([""]),
        client_ids=pa.array([""]),
        first_client=np.array([0, 1]),
        node_id=np.array([0]),
        timelines={0: empty_timeline()},
    )
    Partition(task, 0).replay(unpack(block.data, block.rows))


def _is_compiled() -> bool:
    return any(cache_directory(os.environ, KERNEL_MODULES).rglob("*.nbc"))


if __name__ == "__main__":
    compile_replay_kernel()
