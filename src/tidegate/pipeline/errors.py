"""Errors of the pipeline, and the one place where Spark's own errors become ours."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException

from tidegate.errors import ConfigError, TidegateError

__all__ = [
    "DAMAGED_HINT",
    "FilesystemError",
    "JobError",
    "MissingJavaError",
    "OutputError",
    "OutsideRangeError",
    "UsageFilesError",
    "VanishedFileError",
    "check_sum",
    "spark_errors_as_ours",
    "start_error",
]

_OWN_MESSAGE = re.compile(
    r"^(?:tidegate\.pipeline\.errors\.)?(?:UsageFiles|VanishedFile|Filesystem)Error: (?P<message>.+)$"
    r"(?:\nhint: (?P<hint>.+)$)?",
    re.MULTILINE,
)
_UNREADABLE_FILE = re.compile(r"while reading file (?:file:/*)?(?P<path>/?[^\s'\"]+\.parquet)")
_VANISHED_FILE = re.compile(r"FILE_NOT_EXIST|FileNotFoundException")
_OUT_OF_MEMORY = re.compile(r"java\.lang\.OutOfMemoryError")
_OVERFLOW = re.compile(r"\[ARITHMETIC_OVERFLOW")
_MISSING_MODULE = re.compile(r"(?:ModuleNotFoundError: )?No module named '?(?P<module>[\w.]+)'?")
_NOT_RUN = re.compile(r'Cannot run program "(?P<program>[^"]+)"')
_SAID = re.compile(
    r"^(?:Error: |Caused by: [\w.$]+: |Exception in thread \S+ [\w.$]+: )(?P<reason>.+)$", re.MULTILINE
)
_NOT_TAKEN = re.compile(r"Application has been killed\. Reason: (?P<reason>.+)$", re.MULTILINE)
_LOST_TASK = re.compile(r"Lost task [^:]+?\): (?P<reason>.+)")
_PYTHON_ERROR = re.compile(r"[\w.]+(?:Error|Exception): ")
_SAYS_NOTHING = re.compile(
    r"Traceback .*:|An exception was thrown from the Python worker.*|[\w.$]+(?:Error|Exception):?|Job aborted\.?"
    r"|An error occurred while calling .*"
)
_SPARKS_OWN = re.compile(r"^(?:(?:org\.apache\.spark|pyspark|py4j)[\w.$]*: )+")
_CLUSTER_HINT = (
    "see docs/clusters.md for what executors need; "
    "PYSPARK_PYTHON, set before Spark starts, is the Python that they run"
)
DAMAGED_HINT = "move the file away or replace it with an undamaged copy, then run the command again"
_VANISHED_HINT = "run the command again: compaction replaces files"
_LONGEST_REASON = 300  # characters of a foreign message that are shown
_LARGEST_SUM = 2.0**62  # as a double; half of what 64 bits hold


class MissingJavaError(TidegateError):
    """Raise when there is no Java that Spark can run on."""


class _FromExecutorsError(ConfigError):
    """An error whose hint is also a note: only the traceback of an executor's error reaches the driver."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        if hint is not None and TaskContext.get() is not None:
            self.add_note(f"hint: {hint}")


class UsageFilesError(_FromExecutorsError):
    """Raise when the usage files given cannot be used; names the file."""


class OutsideRangeError(UsageFilesError):
    """Raise when a record has no rows in the range of time that is asked for."""


class VanishedFileError(UsageFilesError):
    """Raise when a usage file that was listed is not there any more."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path!r} was removed while it was read", hint=_VANISHED_HINT)
        self.path = path


class FilesystemError(_FromExecutorsError):
    """Raise when a filesystem that a URI names cannot be opened, or does not do what it is asked for."""


class OutputError(ConfigError):
    """Raise when results cannot be written where they were asked for."""


class JobError(TidegateError):
    """Raise when a Spark job failed for a reason outside our files."""


@contextmanager
def spark_errors_as_ours(*, spark_log: Path | None) -> Iterator[None]:
    """Raise what Spark raises inside the block as one of our errors, with `from`."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _as_ours(str(error), spark_log) from error


def _as_ours(text: str, spark_log: Path | None) -> TidegateError:
    if own := _OWN_MESSAGE.search(text):
        return UsageFilesError(own["message"], hint=own["hint"])
    if _VANISHED_FILE.search(text):
        return UsageFilesError("a usage file was removed while it was read", hint=_VANISHED_HINT)
    if unreadable := _UNREADABLE_FILE.search(text):
        path = "/" + unquote(unreadable["path"]).lstrip("/")
        return UsageFilesError(
            f"cannot read {path!r}: its data is damaged",
            hint=DAMAGED_HINT,
        )
    if _OVERFLOW.search(text):
        return _sum_error()
    if _OUT_OF_MEMORY.search(text):
        return JobError(
            "Spark ran out of memory", hint="give Spark more memory: SPARK_DRIVER_MEMORY=4g tidegate ..."
        )
    if missing := _MISSING_MODULE.search(text):
        return JobError(f"the executors' Python has no module {missing['module']!r}", hint=_CLUSTER_HINT)
    if not_run := _NOT_RUN.search(text):
        return JobError(f"the executors cannot run {not_run['program']!r}", hint=_CLUSTER_HINT)
    return JobError(f"the Spark job failed: {_reason_of(text)}", hint=_log_hint(spark_log))


def check_sum(total: float) -> None:
    """Raise `UsageFilesError` where a sum of numbers, none below 0, has no room in 64 bits."""
    if total > _LARGEST_SUM:
        raise _sum_error()


def _sum_error() -> UsageFilesError:
    return UsageFilesError(
        "a sum over the usage files does not fit into 64 bits: a row contains an impossible number",
        hint="exclude the hour of that row with --from and --to",
    )


def start_error(text: str, said: str, *, spark_log: Path | None) -> JobError:
    """Return why Spark did not start: what it raised here, or what its Java process said before it ended."""
    is_gone = "JAVA_GATEWAY_EXITED" in text
    reasons = [match["reason"] for match in (_SAID if is_gone else _NOT_TAKEN).finditer(said)]
    reason = reasons[-1] if reasons else _reason_of(text)
    return JobError(f"cannot start Spark: {reason[:_LONGEST_REASON]}", hint=_log_hint(spark_log))


def _reason_of(text: str) -> str:
    """Return the line of Spark's pages that says what went wrong, without the names of its exceptions."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    raised = [line for line in lines if _PYTHON_ERROR.match(line)] if "Traceback" in text else []
    lost = [match["reason"] for match in _LOST_TASK.finditer(text)]
    candidates = [*reversed([*lost, *causes]), *reversed(raised), *lines]
    reason = next((line for line in candidates if not _SAYS_NOTHING.fullmatch(line)), "no reason given")
    return _SPARKS_OWN.sub("", reason)[:_LONGEST_REASON]


def _log_hint(spark_log: Path | None) -> str | None:
    return None if spark_log is None else f"see the log of Spark: {spark_log}"
