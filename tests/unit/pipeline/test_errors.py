"""What Spark raises, as our errors; and that all of ours say what can be done."""

import ast
import builtins
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from tidegate import pipeline
from tidegate.pipeline.errors import JobError, UsageFilesError, spark_errors_as_ours, start_error

_WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
tidegate.pipeline.errors.UsageFilesError: seq 6 of node 3 occurs twice
"""
_DAMAGED = "Encountered error while reading file file:///data/date=2026-01-01/hour=00/a%20b.parquet. Details:"
_UNKNOWN = (
    "Job aborted.\n\nCaused by: java.io.IOException: No space left on device\n\tat java.base/java.io..."
)


_HAVE_THEIRS = {"ArgumentError", "VanishedFileError"}


def test_every_error_has_a_hint():
    """Wherever one of ours is made: a reason alone leaves its reader alone."""
    without = [
        f"{path.name}:{node.lineno}"
        for path in sorted(Path(pipeline.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.endswith("Error")
        and not hasattr(builtins, node.func.id)
        and node.func.id not in _HAVE_THEIRS
        and "hint" not in {keyword.arg for keyword in node.keywords}
    ]
    assert without == []


def _raised(text, log=None):
    with pytest.raises((JobError, UsageFilesError)) as caught, spark_errors_as_ours(spark_log=log):
        raise PySparkException(text)
    return caught.value


@pytest.mark.parametrize("name", ["UsageFilesError", "FilesystemError"])
def test_our_own_error_comes_back_from_a_worker(name):
    """What a partition found wrong with its rows, or its filesystem, is said as it was raised there."""
    error = _raised(_WORKER.replace("UsageFilesError", name))
    assert isinstance(error, UsageFilesError)
    assert str(error) == "seq 6 of node 3 occurs twice"
    assert error.hint is None


def test_its_hint_comes_with_it():
    """As a worker's traceback has it."""
    error = _raised(f"{_WORKER}hint: a file was given twice\n\n\tat org.apache.spark...")
    assert (str(error), error.hint) == ("seq 6 of node 3 occurs twice", "a file was given twice")


def test_a_file_that_cannot_be_read_is_named():
    """Spark's report of a damaged file becomes one line with its path."""
    assert str(_raised(_DAMAGED)) == (
        "cannot read '/data/date=2026-01-01/hour=00/a b.parquet': its data is damaged"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[ARITHMETIC_OVERFLOW] long overflow", "does not fit into 64 bits"),
        ("java.lang.OutOfMemoryError: Java heap space", "Spark ran out of memory"),
        (
            "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file x",
            "was removed while it was read",
        ),
        (_UNKNOWN, "the Spark job failed: java.io.IOException: No space left on device"),
        ("", "no reason given"),
    ],
)
def test_other_failures_are_one_line(text, reason):
    """The reason that helps is picked out of Spark's pages."""
    error = _raised(text)
    assert reason in str(error)
    assert "\n" not in str(error)


def test_the_log_of_spark_is_pointed_to():
    """Whoever wants to know more is told where it is."""
    assert _raised(_UNKNOWN, Path("/tmp/x.log")).hint == "see the log of Spark: /tmp/x.log"


_NO_MODULE = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: \
Lost task 0.3 in stage 0.0 (TID 7) (127.0.0.1 executor 1): org.apache.spark.SparkException:
Error from python worker:
  /usr/bin/python3: No module named pyspark
"""
_RAISED = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
OSError: [Errno 28] No space left on device
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_NO_MODULE, "the executors' Python has no module 'pyspark'"),
        ("ModuleNotFoundError: No module named 'numba'", "the executors' Python has no module 'numba'"),
        ('Cannot run program "/nowhere/python": error=2', "the executors cannot run '/nowhere/python'"),
        (_RAISED, "the Spark job failed: OSError: [Errno 28] No space left on device"),
        ("org.apache.spark.SparkException: it is full", "the Spark job failed: it is full"),
        (
            "Caused by: org.apache.spark.SparkException: \n",
            "the Spark job failed: Caused by: org.apache.spark.SparkException:",
        ),
    ],
)
def test_what_failed_on_an_executor_is_said(text, reason):
    """And not which class of Spark's has passed it on."""
    assert str(_raised(text)) == reason


def test_the_hint_about_a_missing_module_names_the_setting():
    """A session that the user makes runs another Python than theirs, unless the variable is set in time."""
    hint = _raised("ModuleNotFoundError: No module named 'tidegate'").hint
    assert "PYSPARK_PYTHON, set before Spark starts," in hint


@pytest.mark.parametrize(
    ("text", "said", "reason"),
    [
        ("[JAVA_GATEWAY_EXITED] gone", "WARN x\nError: Master must be one\n", "Master must be one"),
        (
            "stopped",
            "x: Application has been killed. Reason: No masters! Giving up.\n",
            "No masters! Giving up.",
        ),
        ("[JAVA_GATEWAY_EXITED] gone", "", "[JAVA_GATEWAY_EXITED] gone"),
        (
            "An error occurred while calling None.X.\n: java.lang.Y: a\nCaused by: java.net.Z: refused",
            "Error: b",
            "java.net.Z: refused",
        ),
    ],
)
def test_why_spark_does_not_start(text, said, reason):
    """What it raised here, or what its Java process has said where that is gone."""
    error = start_error(text, said, spark_log=Path("/tmp/x.log"))
    assert (str(error), error.hint) == (f"cannot start Spark: {reason}", "see the log of Spark: /tmp/x.log")
