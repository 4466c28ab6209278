"""A progress bar on stderr, fed from Spark's own count of finished tasks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["progress_of"]

_LOOK_EVERY_SECONDS = 0.2


@contextmanager
def progress_of(context: SparkContext, description: str) -> Iterator[None]:
    """Show how far Spark has come with what is run inside the block. Shows nothing where stderr is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tasks]}"),
        TimeElapsedColumn(),
    )
    done = threading.Event()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = _Bar(context, progress, description)
        watcher = threading.Thread(target=bar.follow, args=(done,), name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


class _Bar:
    """One bar over all stages that were seen so far."""

    def __init__(self, context: SparkContext, progress: Progress, description: str) -> None:
        self._tracker = context.statusTracker()
        self._progress = progress
        self._task = progress.add_task(description, total=None, tasks="")
        self._stages: dict[int, tuple[int, int]] = {}

    def follow(self, done: threading.Event) -> None:
        """Update the bar at intervals until `done`."""
        while not done.wait(_LOOK_EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        active = set(self._tracker.getActiveStageIds())
        for stage in active | self._stages.keys():
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                self._stages[stage] = (info.numCompletedTasks, info.numTasks)
        finished = sum(completed for completed, _ in self._stages.values())
        total = sum(tasks for _, tasks in self._stages.values())
        if total:
            self._progress.update(
                self._task, completed=finished, total=total, tasks=f"{finished}/{total} tasks"
            )
