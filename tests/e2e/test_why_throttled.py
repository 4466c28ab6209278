"""The page for developers of throttled applications (`docs/why-throttled.md`): its program, and the names it gives."""

import re
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from tests.e2e.left_sockets import MAY_LEAVE_SOCKETS

from tidegate.testing import Broker, broker

pytestmark = MAY_LEAVE_SOCKETS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "why-throttled.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
QUOTAS = [{"client-id": "checkout", "producer_byte_rate": 10_000, "consumer_byte_rate": 10_000}]


@pytest.fixture
def limited():
    """Return a broker with the quotas of the page."""
    with broker(quotas=QUOTAS) as own:
        yield own


def test_the_program_prints_the_throttle_time(limited: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """As the page says: of 500,000 bytes under 10 KB/s, the producer is told to wait for about 40 s."""
    exec(compile(PROGRAM.replace("127.0.0.1:9092", limited.bootstrap), "docs/why-throttled.md", "exec"), {})
    printed = capsys.readouterr().out.replace(limited.bootstrap, "127.0.0.1:9092")
    match = re.fullmatch(r"(127\.0\.0\.1:9092 throttles for )(\d+\.\d) s\n", printed)
    assert match is not None, printed
    assert f"`{match[1]}40.0 s`" in PAGE
    assert 38.0 < float(match[2]) <= 40.1
    assert {throttle.throttle_time_ms // 1000 for throttle in limited.throttles(client_id="checkout")} <= {
        38,
        39,
        40,
    }


def test_kafka_python_has_the_metrics(limited: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Under the names that the page gives."""
    settings = {"bootstrap_servers": limited.bootstrap, "client_id": "checkout"}
    producer, consumer = KafkaProducer(**settings), KafkaConsumer("orders", **settings)
    try:
        producer.send("orders", b"x" * 150_000).get(30)
        consumer.poll(500)
        for client in (producer, consumer):
            values = {name: value for group in client.metrics().values() for name, value in group.items()}
            assert {"throttle-time-avg", "throttle-time-max"} <= set(values), sorted(values)
            if client is producer:
                assert values["throttle-time-max"] == pytest.approx(5_000, abs=100)
        assert "throttled by broker" in caplog.text
    finally:
        producer.close(timeout=1)
        consumer.close()


def test_links_of_the_index() -> None:
    """The index lists the pages that an application developer and an operator look for."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for title, page in (
        ("Why am I throttled?", "why-throttled.md"),
        ("Test your application", "testing-applications.md"),
        ("Quotas as code", "quotas-as-code.md"),
        ("Monitor", "monitoring.md"),
    ):
        assert re.search(rf"{re.escape(title)}[^\n]*\({page}\)", index), title
