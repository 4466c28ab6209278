"""The latest values of metrics of clients, of an answer that a real Prometheus gave for a real Kafka."""

import json
from pathlib import Path

import pytest

from tidegate.pipeline.prometheus.measured import RECENT_S, NoMetricsError, Use, latest_from_files
from tidegate.pipeline.prometheus.spellings import KNOWN
from tidegate.quota.managers.quota_type import QuotaType

ANSWER = Path(__file__).parents[3] / "vectors" / "prometheus" / "jmx-exporter.json"
BROKER = "127.0.0.1:27569"


def test_the_last_point_of_each_series_counts() -> None:
    """Rates of each quota type, and the mean throttle time of the client that was throttled."""
    uses = latest_from_files([ANSWER], KNOWN)
    assert uses[QuotaType.PRODUCE, "ANONYMOUS", "slow"] == {BROKER: Use(rate=0.0, throttle_ms=5013.0)}
    assert uses[QuotaType.PRODUCE, "ANONYMOUS", "app"][BROKER] == Use(rate=851398.2558139536)
    assert uses[QuotaType.FETCH, "ANONYMOUS", "reader"][BROKER].rate == 1084218.0407209613
    assert uses[QuotaType.REQUEST, "ANONYMOUS", 'team:a "x", y=1*'][BROKER].rate == 0.9388503506563568
    assert uses[QuotaType.CONTROLLER_MUTATION, "ANONYMOUS", "deployer"][BROKER].throttle_ms == 0.0


def _answer(path: Path, *series: tuple[dict[str, str], list[tuple[float, str]]]) -> Path:
    result = [{"metric": labels, "values": values} for labels, values in series]
    data = {"resultType": "matrix", "result": result}
    path.write_text(json.dumps({"status": "success", "data": data}))
    return path


def test_old_points_do_not_count(tmp_path: Path) -> None:
    """A client that is gone has no rate; a throttle that is over is none; of two series of a broker the largest."""

    def labels(measure: str, user: str, **more: str) -> dict[str, str]:
        name = f"kafka_server_produce_{measure}"
        return {"__name__": name, "user": user, "instance": "kafka:7071", **more}

    path = _answer(
        tmp_path / "answer.json",
        (labels("byte_rate", "alice"), [(1000.0, "7"), (1500.0, "5")]),
        (labels("byte_rate", "alice", job="b"), [(1500.0, "6")]),
        (labels("throttle_time", "alice"), [(1485.0, "900"), (1500.0, "NaN")]),
        (labels("byte_rate", "bob"), [(1500.0 - RECENT_S - 1, "9")]),
    )
    assert latest_from_files([path], KNOWN) == {
        (QuotaType.PRODUCE, "alice", None): {"kafka:7071": Use(rate=6.0)}
    }


def test_an_answer_without_metrics_of_clients_is_refused(tmp_path: Path) -> None:
    """The error names what was looked for."""
    path = _answer(tmp_path / "answer.json", ({"__name__": "up", "instance": "a"}, [(1.0, "1")]))
    with pytest.raises(NoMetricsError, match="looked for kafka_server_quota_byte_rate"):
        latest_from_files([path], KNOWN)
