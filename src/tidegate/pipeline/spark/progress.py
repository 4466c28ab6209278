"""The progress of Spark's tasks, reported from Spark's own count of those that are finished."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from tidegate.pipeline.progress import OnProgress, Progress, silent

__all__ = ["progress_of"]

_LOOK_EVERY_SECONDS = 0.2


@contextmanager
def progress_of(context: SparkContext, what: str, on_progress: OnProgress) -> Iterator[None]:
    """Report how many tasks of all stages that run inside the block are done, from a thread."""
    if on_progress is silent:
        yield
        return
    stages, done = _Stages(context), threading.Event()

    def follow() -> None:
        while not done.wait(_LOOK_EVERY_SECONDS):
            finished, total = stages.tasks()
            on_progress(Progress(what, finished, total or None))

    on_progress(Progress(what, 0, None))
    watcher = threading.Thread(target=follow, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


class _Stages:
    """The stages that were seen so far, each with its tasks."""

    def __init__(self, context: SparkContext) -> None:
        self._tracker = context.statusTracker()
        self._stages: dict[int, tuple[int, int]] = {}

    def tasks(self) -> tuple[int, int]:
        """Return how many tasks are finished, and how many there are."""
        active = set(self._tracker.getActiveStageIds())
        for stage in active | self._stages.keys():
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                self._stages[stage] = (info.numCompletedTasks, info.numTasks)
        finished = sum(completed for completed, _ in self._stages.values())
        return finished, sum(tasks for _, tasks in self._stages.values())
