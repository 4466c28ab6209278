"""The progress of a job, shown on stderr where that is a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.pipeline.progress import OnProgress, Progress

__all__ = ["progress_shown"]


@contextmanager
def progress_shown(*, in_bytes: bool = False) -> "Iterator[OnProgress]":
    """Yield the function that shows the progress of a job. in_bytes: what is counted are bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from tidegate.pipeline.progress import silent

    console = Console(stderr=True)
    if not console.is_terminal:
        yield silent
        return
    counted = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counted, TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def show(progress: "Progress") -> None:
            what, done, total = progress
            bars.update(task, description=what, completed=done, total=total)
            if done == 0:  # the first of its kind is seen before it is over
                bars.refresh()

        yield show
