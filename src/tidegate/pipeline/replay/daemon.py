"""Daemon that forks Spark's Python workers, in place of Spark's own; it first loads the modules that all workers need.

Loading numba, Arrow and the compiled kernel takes about a second; the daemon does it once, for all workers.
Named in `spark.python.daemon.module`. Follows: pyspark's own `pyspark.daemon`, whose `manager` it runs.
"""

import contextlib

from pyspark.daemon import manager

__all__ = ["main"]


def main() -> None:
    """Load, then wait for Spark to ask for workers."""
    with contextlib.suppress(
        Exception
    ):  # whatever is wrong shows in the worker, which says what it was doing
        import tidegate.pipeline.replay.partition  # noqa: F401
        from tidegate.pipeline.replay.kernel.open_loop import replay_kernel

        replay_kernel()
    manager()


if __name__ == "__main__":
    main()
