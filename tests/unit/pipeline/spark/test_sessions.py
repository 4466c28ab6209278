"""Sessions of Spark Connect without a server: their address, what is refused, and values that go with functions."""

import pickle
import socket
import zipfile

import pytest

from tidegate.errors import TidegateError
from tidegate.pipeline.errors import JobError, UsageFilesError
from tidegate.pipeline.record import where_and_why
from tidegate.pipeline.spark import sessions
from tidegate.pipeline.spark.session import connect_address, running_spark

_Connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "is_stopped": True})


def test_a_value_is_unpickled_once_in_a_task():
    """It is small in the function that it goes with, and one object for all that ask for it."""
    sent = sessions.shared(_Connect(), {"clients": ["a"] * 1000})
    received = pickle.loads(pickle.dumps(sent))
    assert received.value == sent.value
    assert received.value is received.value


def test_what_is_too_large_for_a_message_is_refused(monkeypatch):
    """Before the server refuses it with a text about messages."""
    monkeypatch.setattr(sessions, "MOST_SENT_BYTES", 10)
    with pytest.raises(UsageFilesError, match="that Spark Connect sends"):
        sessions.shared(_Connect(), "x" * 100)


def test_a_session_that_cannot_run_jobs_is_refused():
    """A stopped one, and what is none."""
    with pytest.raises(JobError, match="the Spark session is stopped"):
        sessions.check_session(_Connect())
    with pytest.raises(JobError, match="spark must be a SparkSession, got 'local'"):
        sessions.check_session("local")


def test_the_server_is_named_by_the_option_or_the_environment(monkeypatch):
    """The option counts; `spark-submit` has a session of its own."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert connect_address(None) is None
    monkeypatch.setenv("SPARK_REMOTE", "sc://there")
    assert (connect_address(None), connect_address("sc://here")) == ("sc://there", "sc://here")
    assert connect_address("local[2]") is None
    assert where_and_why(master=None, rows=1) == (False, "on Spark Connect: SPARK_REMOTE")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert connect_address(None) is None


def test_a_server_that_is_not_there_is_named_at_once():
    """Its client would try again for minutes. The address is shown without its token."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"sc://127.0.0.1:{unused.getsockname()[1]}/"
        with (
            pytest.raises(TidegateError, match="cannot reach the Spark Connect server") as caught,
            running_spark(app_name="tests", master=f"{address};token=secret", rows=0),
        ):
            pass
    assert repr(address) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_archive_has_all_modules(tmp_path):
    """Executors import the package from it."""
    with zipfile.ZipFile(sessions.package_archive(tmp_path)) as archive:
        assert "tidegate/pipeline/jobs/executor.py" in archive.namelist()
