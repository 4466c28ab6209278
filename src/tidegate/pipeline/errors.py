"""Errors of the pipeline, and the one place where Spark's own errors become ours."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tidegate.errors import ConfigError, TidegateError

__all__ = ["JobError", "MissingJavaError", "OutputError", "UsageFilesError", "spark_errors_as_ours"]

_OWN_MESSAGE = re.compile(
    r"^(?:tidegate\.pipeline\.errors\.)?UsageFilesError: (?P<message>.+)$", re.MULTILINE
)
_UNREADABLE_FILE = re.compile(r"while reading file (?:file:/*)?(?P<path>/?[^\s'\"]+\.parquet)")
_VANISHED_FILE = re.compile(r"FILE_NOT_EXIST|FileNotFoundException")
_OUT_OF_MEMORY = re.compile(r"java\.lang\.OutOfMemoryError")
_OVERFLOW = re.compile(r"\[ARITHMETIC_OVERFLOW")
_LONGEST_REASON = 300  # characters of a foreign message that are shown


class MissingJavaError(TidegateError):
    """Raise when there is no Java that Spark can run on."""


class UsageFilesError(ConfigError):
    """Raise when the usage files given cannot be used; names the file."""


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
        return UsageFilesError(own["message"])
    if _VANISHED_FILE.search(text):
        return UsageFilesError(
            "a usage file vanished while it was read", hint="run again: old files are compacted"
        )
    if unreadable := _UNREADABLE_FILE.search(text):
        path = "/" + unquote(unreadable["path"]).lstrip("/")
        return UsageFilesError(
            f"cannot read {path!r}: its data is damaged",
            hint="move the file away, or fetch an undamaged copy of it, and run again",
        )
    if _OVERFLOW.search(text):
        return UsageFilesError(
            "a sum over the usage files does not fit into 64 bits: some row holds an impossible number"
        )
    if _OUT_OF_MEMORY.search(text):
        return JobError("Spark ran out of memory", hint="give it more: SPARK_DRIVER_MEMORY=4g tidegate ...")
    return JobError(f"the Spark job failed: {_first_line(text)}", hint=_log_hint(spark_log))


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    reason = causes[-1].removeprefix("Caused by: ") if causes else (lines[0] if lines else "no reason given")
    return reason[:_LONGEST_REASON]


def _log_hint(spark_log: Path | None) -> str | None:
    return None if spark_log is None else f"what Spark said is in {spark_log}"
