"""The differences between classic sessions and Spark Connect: cores, values for all tasks, this package, progress.

A session of Spark Connect has no SparkContext: a value for all tasks goes with their function, the package is an
artifact of the session, and the server reports how many tasks are done.
"""

import pickle
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary
from zipfile import ZIP_DEFLATED, ZipFile

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

import tidegate
from tidegate.pipeline.errors import JobError, UsageFilesError
from tidegate.pipeline.progress import OnProgress, Progress, silent

__all__ = [
    "Shared",
    "check_session",
    "cores_of",
    "is_connect",
    "package_archive",
    "progress_in",
    "send_package",
    "shared",
]

MOST_SENT_BYTES = 100 << 20
"""Largest value that goes with a function of Spark Connect, whose messages have at most 128 MiB."""

_CONNECT = "pyspark.sql.connect."
_LOOK_EVERY_SECONDS = 0.2
_PARTITIONS = 1 << 16  # more than a cluster has cores
_START_HINT = "create one: SparkSession.builder.getOrCreate()"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_Stages = dict[int, tuple[int, int]]
"""The stages that were seen so far, each with its finished tasks and all of its tasks."""


class Shared(Protocol[T_co]):
    """A value that all tasks have: a broadcast, or a part of their function."""

    @property
    def value(self) -> T_co:
        """Return the value."""


class _Sent(Generic[T]):
    """A value that goes with a function, pickled and unpickled once."""

    def __init__(self, value: T) -> None:
        self._found: list[T] = [value]
        self._pickled = pickle.dumps(value)
        if len(self._pickled) > MOST_SENT_BYTES:
            raise UsageFilesError(
                f"the clients of the record take more than the {MOST_SENT_BYTES >> 20} MiB that Spark Connect sends",
                hint="give fewer hours, or use a classic session",
            )

    def __getstate__(self) -> bytes:
        """Return the pickled value alone."""
        return self._pickled

    def __setstate__(self, pickled: bytes) -> None:
        """Keep the pickled value until it is asked for."""
        self._pickled, self._found = pickled, []

    @property
    def value(self) -> T:
        """Return the value."""
        if not self._found:
            self._found.append(pickle.loads(self._pickled))
        return self._found[0]


_packages: "WeakKeyDictionary[Any, tempfile.TemporaryDirectory[str]]" = WeakKeyDictionary()


def is_connect(session: object) -> bool:
    """Return whether this is a session of Spark Connect."""
    return type(session).__module__.startswith(_CONNECT)


def check_session(session: Any) -> None:
    """Raise `JobError` where this is no session that can run jobs."""
    if is_connect(session) and hasattr(session, "is_stopped"):
        is_stopped = session.is_stopped
    elif isinstance(session, SparkSession):
        java = session.sparkContext._jsc
        is_stopped = java is None or java.sc().isStopped()
    else:
        raise JobError(f"spark must be a SparkSession, got {session!r}", hint=_START_HINT)
    if is_stopped:
        raise JobError("the Spark session is stopped", hint=_START_HINT)


def cores_of(session: Any) -> int:
    """Return the cores of all executors."""
    if not is_connect(session):
        cores: int = session.sparkContext.defaultParallelism
        return cores
    numbers = session.range(_PARTITIONS).selectExpr("spark_partition_id() as number")
    return max(1, int(numbers.distinct().count()))


def shared(session: Any, value: T) -> Shared[T]:
    """Return a value for all tasks. Raises `UsageFilesError` where it is too large for Spark Connect."""
    if is_connect(session):
        return _Sent(value)
    broadcast: Shared[T] = session.sparkContext.broadcast(value)
    return broadcast


def send_package(session: Any) -> None:
    """Send this package to the executors of a session, once; those in the process of a classic session have it."""
    of_session = session if is_connect(session) else session.sparkContext
    if of_session in _packages or not Path(tidegate.__file__).is_file():
        return
    if not is_connect(session) and re.match(r"local($|\[)", of_session.master or ""):
        return
    directory = tempfile.TemporaryDirectory(prefix="tidegate-package-")
    archive = package_archive(Path(directory.name))
    if is_connect(session):
        session.addArtifacts(str(archive), pyfile=True)
    else:
        paths = [*sys.path]
        of_session.addPyFile(str(archive))
        sys.path[:] = paths  # it was put there, for this process, which has the package
    _packages[of_session] = directory  # executors that come later fetch it, too


def package_archive(directory: Path) -> Path:
    """Write an archive of this package to a directory, and return its path."""
    package, archive = Path(tidegate.__file__).parent, directory / "tidegate-package.zip"
    with ZipFile(archive, "w", ZIP_DEFLATED) as file:
        for path in sorted(package.rglob("*.py")):
            file.write(path, path.relative_to(package.parent))
    return archive


@contextmanager
def progress_in(session: Any, what: str, on_progress: OnProgress) -> Iterator[None]:
    """Report how many tasks of all stages that run inside the block are done, from a thread."""
    if on_progress is silent:
        yield
        return
    stages: _Stages = {}

    def report() -> None:
        finished, total = (sum(numbers) for numbers in zip((0, 0), *stages.values(), strict=True))
        on_progress(Progress(what, finished, total or None))

    on_progress(Progress(what, 0, None))
    with (_sent_by_server if is_connect(session) else _looked_up)(session, stages, report):
        yield


@contextmanager
def _sent_by_server(session: Any, stages: _Stages, report: Callable[[], None]) -> Iterator[None]:
    """Store what the server of Spark Connect sends about stages in the block."""
    lock = threading.RLock()
    known = stages

    # PySpark gives the arguments by these names.
    def show(stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        with lock:
            known.update({each.stage_id: (each.num_completed_tasks, each.num_tasks) for each in stages or ()})
            report()  # the caller's function may run a query of its own, whose progress comes here, too

    session.registerProgressHandler(show)
    try:
        yield
    finally:
        session.removeProgressHandler(show)


@contextmanager
def _looked_up(session: Any, stages: _Stages, report: Callable[[], None]) -> Iterator[None]:
    """Look up in a thread, by Spark's own count, how far the stages are that run in the block.

    An error of `report` cancels the jobs of the block, and is raised at its end.
    """
    jobs, tracker = session.sparkContext, session.sparkContext.statusTracker()
    is_over = threading.Event()
    tag = f"tidegate-{id(is_over)}"

    def look() -> None:
        for stage in {*tracker.getActiveStageIds(), *stages}:
            info = tracker.getStageInfo(stage)
            if info is not None:
                stages[stage] = info.numCompletedTasks, info.numTasks

    def follow() -> None:
        while not is_over.wait(_LOOK_EVERY_SECONDS):
            with suppress(Py4JError):  # the jobs fail, too
                look()
            report()

    def follow_or_cancel() -> None:
        try:
            follow()
        except BaseException:
            while True:  # the next job may be on its way
                with suppress(Py4JError):
                    jobs.cancelJobsWithTag(tag)
                if is_over.wait(_LOOK_EVERY_SECONDS):
                    raise

    with ThreadPoolExecutor(1, "progress") as pool:
        jobs.addJobTag(tag)
        followed = pool.submit(follow_or_cancel)
        try:
            yield
        finally:
            is_over.set()
            with suppress(Py4JError):
                jobs.removeJobTag(tag)
            followed.result()
