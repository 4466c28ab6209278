"""The Spark session of the jobs: quiet, in UTC, running this very Python unless `PYSPARK_PYTHON` names another.

The settings that the jobs need are set here only. If a session is already running (in a notebook, in the tests), the
jobs use a new session on its executors with settings of its own; the running one stays as it is. Executors on other
machines receive this package (docs/clusters.md).
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from rich.console import Console

import tidegate
from tidegate.child_python import SAFE_PATH_VARIABLE, environment_variable, safe_path
from tidegate.pipeline.errors import JobError, start_error
from tidegate.pipeline.spark.java import ClassArchive, require_java
from tidegate.pipeline.spark.sessions import is_connect, package_archive, send_package

__all__ = [
    "ARROW_BATCH_BYTES",
    "DEFAULT_MASTER",
    "RunningSpark",
    "connect_address",
    "is_submitted",
    "running_spark",
    "spark_settings",
]

DEFAULT_MASTER = "local[*]"
ARROW_BATCH_BYTES = 16 << 20  # of one batch for a Python worker: four blocks of rows
_DRIVER_MEMORY = "1g"  # local mode; SPARK_DRIVER_MEMORY says otherwise

_SQL_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.caseSensitive": "true",
}
_CONNECT_PORT = 15002  # Spark's default
_CONNECT_SECONDS = 10.0
_PYTHON_VARIABLE = "PYSPARK_PYTHON"
_DAEMON = "tidegate.pipeline.replay.daemon"
_KEEPING = "saving Spark's classes for faster starts (once, a few seconds, 170 MB)"
_KEEPING_SECONDS = 60  # after this time, on a busy machine, the archive is given up
_FEW_ROWS = 300_000
_FEW_ROWS_SETTINGS = {
    # Half of a short job's time would go into compiling code that hardly runs.
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
    """Yield a session. If it was started here, stop it at the end and remove its log; a `JobError` keeps the log.

    master: in Spark's own notation; None is the master given to `spark-submit`, else `local[*]`.
    rows: number of rows that Spark itself handles (a replay: none), so that a short job starts quickly.
    Raises `MissingJavaError`, or `JobError` if Spark does not start.
    """
    if (address := connect_address(master)) is not None:
        _check_server(address)
        with _errors_of_the_start(None):
            remote = SparkSession.builder.remote(address).getOrCreate()
            send_package(remote)
        try:
            yield RunningSpark(session=remote, log=None)
        finally:
            remote.stop()
        return
    active = SparkSession.getActiveSession()
    if active is not None and is_connect(active):
        send_package(active)
        yield RunningSpark(session=active, log=None)
        return
    if active is not None:
        yield RunningSpark(session=_with_sql_settings(active.newSession()), log=None)
        return
    settings = spark_settings(app_name=app_name, master=master, rows=rows)
    if is_submitted():
        with _errors_of_the_start(None):
            session = _started(settings, gateway=None)
        try:
            with _sent_along(session.sparkContext):
                yield RunningSpark(session=session, log=None)
        finally:
            session.stop()  # its Java ends with this process
        return
    java_version = require_java()
    archive = ClassArchive(java_version) if settings["spark.master"].startswith("local") else None
    log = _new_log()
    is_wanted = True  # the hint of a `JobError` names it
    gateway = _launch(settings if archive is None else archive.in_settings(settings), log)
    try:
        with _errors_of_the_start(log):
            session = _started(settings, gateway=gateway)
        try:
            with _sent_along(session.sparkContext):
                yield RunningSpark(session=session, log=log)
        finally:
            session.stop()
        is_wanted = False
    except JobError:
        raise
    except BaseException:
        is_wanted = False
        raise
    finally:
        _end(gateway, archive)
        if not is_wanted:
            log.unlink(missing_ok=True)


def connect_address(master: str | None) -> str | None:
    """Return the address of the Spark Connect server that jobs use: `--master sc://...` or `SPARK_REMOTE`, or None."""
    if master is not None:
        return master if master.startswith("sc://") else None
    return None if is_submitted() else os.environ.get("SPARK_REMOTE")


def _check_server(address: str) -> None:
    """Raise `JobError` if no server listens: Spark's client would silently retry for minutes."""
    try:
        parts = urlsplit(address)
        with socket.create_connection((parts.hostname or "", parts.port or _CONNECT_PORT), _CONNECT_SECONDS):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JobError(
            f"cannot reach the Spark Connect server {address.partition(';')[0]!r}: {reason}",
            hint="check the host and port; sbin/start-connect-server.sh of Spark starts a server",
        ) from error


def spark_settings(*, app_name: str, master: str | None, rows: int) -> dict[str, str]:
    """Return the settings of a new session. Under `spark-submit` its own settings stay in force."""
    settings = {"spark.app.name": app_name, **_SQL_SETTINGS}
    settings[f"spark.executorEnv.{SAFE_PATH_VARIABLE}"] = "1"
    if is_submitted():
        return settings | ({} if master is None else {"spark.master": master})
    master = master or DEFAULT_MASTER
    settings["spark.master"] = master
    if master.startswith("local"):
        if _executors_python() == sys.executable:
            settings["spark.python.daemon.module"] = _DAEMON  # elsewhere it may not be installed
        settings.update(_LOCAL_SETTINGS)
        if rows <= _FEW_ROWS:
            settings.update(_FEW_ROWS_SETTINGS)
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
        settings["spark.driver.memory"] = os.environ.get("SPARK_DRIVER_MEMORY", _DRIVER_MEMORY)
    return settings


def is_submitted() -> bool:
    """Return whether `spark-submit` has started this process, with a Java that is its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _executors_python() -> str:
    """Return the Python that executors run: this one unless the environment names another."""
    return os.environ.get(_PYTHON_VARIABLE, sys.executable)


def _launch(settings: Mapping[str, str], log: Path) -> Any:
    """Start Java with its messages going to `log`, and return the way to it."""
    conf = SparkConf().setAll(list(settings.items()))
    with log.open("ab") as messages, safe_path(), _errors_of_the_start(log):
        return launch_gateway(  # type: ignore[no-untyped-call]
            conf=conf, popen_kwargs={"stderr": messages, "stdout": messages}
        )


def _started(settings: Mapping[str, str], *, gateway: Any) -> SparkSession:
    """Start Spark and return its session. gateway: None is the one of `spark-submit`."""
    conf = SparkConf().setAll(list(settings.items()))
    with environment_variable(_PYTHON_VARIABLE, _executors_python()):
        context = SparkContext(conf=conf, gateway=gateway)
    context.setLogLevel("ERROR")
    return SparkSession(context)


def _end(gateway: Any, archive: ClassArchive | None) -> None:
    """End the Java process, so that the next session can be started with other settings."""
    gateway.shutdown()
    gateway.proc.stdin.close()
    SparkContext._gateway = None
    SparkContext._jvm = None
    if archive is None:
        gateway.proc.wait()
        return
    with Console(stderr=True).status(_KEEPING) if archive.is_made else nullcontext():
        try:
            gateway.proc.wait(_KEEPING_SECONDS if archive.is_made else None)
            archive.install()
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()
            archive.give_up()
        except BaseException:
            gateway.proc.kill()
            gateway.proc.wait()
            archive.give_up()
            raise


@contextmanager
def _errors_of_the_start(log: Path | None) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        said = "" if log is None else log.read_text(errors="replace")
        raise start_error(str(error), said, spark_log=log) from error


@contextmanager
def _sent_along(context: SparkContext) -> Iterator[None]:
    """Send this package to executors that may not have it. Executors in this process have it.

    With `--py-files`, the package is in an archive already, and is not sent.
    """
    package = Path(tidegate.__file__).parent
    if re.match(r"local($|\[)", context.master or "") or not package.is_dir():
        yield
        return
    paths = [*sys.path]
    with tempfile.TemporaryDirectory(prefix="tidegate-package-") as directory:
        context.addPyFile(str(package_archive(Path(directory))))
        try:
            yield
        finally:
            sys.path[:] = paths  # PySpark added the archive for this process too, which has the package


def _with_sql_settings(session: SparkSession) -> SparkSession:
    for key, value in _SQL_SETTINGS.items():
        session.conf.set(key, value)
    return session


def _new_log() -> Path:
    descriptor, path = tempfile.mkstemp(prefix="tidegate-spark-", suffix=".log")
    os.close(descriptor)
    return Path(path)
