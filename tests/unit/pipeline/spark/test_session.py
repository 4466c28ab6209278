"""The settings of a session."""

import pytest

from tidegate.pipeline.spark.session import spark_settings


def _settings(monkeypatch, *, master=None, rows=10**9, **environ):
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_DRIVER_MEMORY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return spark_settings(app_name="test", master=master, rows=rows)


def test_local_mode_stays_on_this_machine(monkeypatch):
    """Without a master everything runs here, listens on loopback only, and shows no web page."""
    settings = _settings(monkeypatch)
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.session.timeZone"] == "UTC"


def test_a_cluster_keeps_its_own_network_settings(monkeypatch):
    """Executors elsewhere must reach the driver."""
    settings = _settings(monkeypatch, master="spark://head:7077")
    assert settings["spark.master"] == "spark://head:7077"
    assert "spark.driver.host" not in settings
    assert "spark.driver.memory" not in settings


def test_spark_submit_decides_the_master(monkeypatch):
    """Under spark-submit its own settings stay in force."""
    settings = _settings(monkeypatch, PYSPARK_GATEWAY_PORT="1234")
    assert "spark.master" not in settings
    assert settings["spark.sql.session.timeZone"] == "UTC"


def test_memory_is_taken_from_the_environment(monkeypatch):
    """SPARK_DRIVER_MEMORY is what Spark itself reads."""
    assert _settings(monkeypatch, SPARK_DRIVER_MEMORY="7g")["spark.driver.memory"] == "7g"


@pytest.mark.parametrize(("rows", "is_short"), [(300_000, True), (300_001, False)])
def test_a_short_job_starts_quickly(monkeypatch, rows, is_short):
    """Few rows are not worth an optimising compiler."""
    settings = _settings(monkeypatch, rows=rows)
    assert ("spark.driver.extraJavaOptions" in settings) is is_short


@pytest.mark.parametrize(
    ("environ", "master", "is_ours"),
    [
        ({}, None, True),
        ({"PYSPARK_PYTHON": "/another/python"}, None, False),
        ({}, "spark://head:7077", False),
        ({"PYSPARK_GATEWAY_PORT": "1"}, None, False),
    ],
)
def test_workers_come_of_our_daemon_where_this_python_runs_them(monkeypatch, environ, master, is_ours):
    """Another Python may not have it: it would say so in place of doing anything."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert ("spark.python.daemon.module" in _settings(monkeypatch, master=master, **environ)) is is_ours
