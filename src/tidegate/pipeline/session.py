"""The Spark session of the jobs: quiet, in UTC, running this very Python.

The settings that the jobs rely on are given here and nowhere else. Where a session is running already (under
`spark-submit`, in a notebook, in the tests) it is used as it is and left running; the settings that can be
changed while it runs are set for it.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidegate.child_python import SAFE_PATH_VARIABLE, safe_path
from tidegate.pipeline.errors import JobError
from tidegate.pipeline.java import require_java

__all__ = ["ARROW_BATCH_BYTES", "DEFAULT_MASTER", "RunningSpark", "running_spark", "spark_settings"]

DEFAULT_MASTER = "local[*]"
ARROW_BATCH_BYTES = 16 << 20  # of what a Python worker gets at once: four blocks of rows
_DRIVER_MEMORY = "1g"  # local mode; SPARK_DRIVER_MEMORY says otherwise

_SQL_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.caseSensitive": "true",
}
_DAEMON = "tidegate.pipeline.replay.daemon"
_FEW_ROWS = 300_000
_FEW_ROWS_SETTINGS = {
    # Half of a short job's time goes into compiling what then hardly runs.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSpark:
    """A session and the file that its Java process writes its messages to (None: not started by us)."""

    session: SparkSession
    log: Path | None


@contextmanager
def running_spark(*, app_name: str, master: str | None = None, rows: int) -> Iterator[RunningSpark]:
    """Give a session; end it, and remove its log, if it was started here; a `JobError` keeps the log.

    master: Spark's own notation; None is what `spark-submit` was given, else `local[*]`.
    rows: how many rows Spark itself handles (a replay: none), so that a short job starts quickly.
    Raises `MissingJavaError`, or `JobError` where Spark does not start.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield RunningSpark(session=_with_sql_settings(active), log=None)
        return
    require_java()
    log = _new_log()
    session = _start(spark_settings(app_name=app_name, master=master, rows=rows), log)
    is_wanted = False
    try:
        yield RunningSpark(session=session, log=log)
    except JobError:
        is_wanted = True  # its hint names the log
        raise
    finally:
        _stop(session)
        if not is_wanted:
            log.unlink(missing_ok=True)


def spark_settings(*, app_name: str, master: str | None, rows: int) -> dict[str, str]:
    """Return the settings of a new session. Under `spark-submit` its own settings stay in force."""
    settings = {"spark.app.name": app_name, "spark.python.daemon.module": _DAEMON, **_SQL_SETTINGS}
    settings[f"spark.executorEnv.{SAFE_PATH_VARIABLE}"] = "1"
    if "PYSPARK_GATEWAY_PORT" in os.environ and master is None:
        return settings
    master = master or DEFAULT_MASTER
    settings["spark.master"] = master
    if master.startswith("local"):
        settings.update(_LOCAL_SETTINGS)
        if rows <= _FEW_ROWS:
            settings.update(_FEW_ROWS_SETTINGS)
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
        settings["spark.driver.memory"] = os.environ.get("SPARK_DRIVER_MEMORY", _DRIVER_MEMORY)
    return settings


def _start(settings: Mapping[str, str], log: Path) -> SparkSession:
    """Start Java with its messages going to `log`, and Spark in it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    conf = SparkConf().setAll(list(settings.items()))
    try:
        with log.open("ab") as messages, safe_path():
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf=conf, popen_kwargs={"stderr": messages, "stdout": messages}
            )
        context = SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, OSError) as error:
        raise JobError(f"Spark does not start: {error}", hint=f"what it said is in {log}") from error
    context.setLogLevel("ERROR")
    return SparkSession(context)


def _stop(session: SparkSession) -> None:
    """End Spark and the Java process, so that the next session can be started with other settings."""
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None


def _with_sql_settings(session: SparkSession) -> SparkSession:
    for key, value in _SQL_SETTINGS.items():
        session.conf.set(key, value)
    return session


def _new_log() -> Path:
    descriptor, path = tempfile.mkstemp(prefix="tidegate-spark-", suffix=".log")
    os.close(descriptor)
    return Path(path)
