"""SIGHUP: a running gateway reads its settings and quotas again."""

import json
import re
import signal
from urllib.request import urlopen

from bench.ports import free_port
from tests.e2e.plain_client import PlainClient
from tests.waiting import wait_until

WAIT_S = 10.0
QUOTA = 100_000.0
OVER = 1_000_000
"""Bytes that exceed a second's worth of the quota by ten times, and its window of ten seconds not at all."""


def wait_for_line(gateway, pattern, since=0):
    """Wait until the log has a line that matches, from a position on; return the position behind it."""
    line = re.compile(pattern)
    wait_until(lambda: line.search(gateway.log, since), WAIT_S, told=lambda: gateway.log[since:])
    return line.search(gateway.log, since).end()


def throttle_time_ms(gateway, topic, client_id):
    """Return the throttle time of the first of two Produce requests that has one: together they exceed the window."""
    with PlainClient(min(gateway.ports.values()), client_id) as client:
        for _ in range(2):
            client.send_produce(topic, value_bytes=OVER)
            answer = client.receive_produce()
            assert answer.responses[0].partition_responses[0].error_code == 0
            if answer.throttle_time_ms:
                break
    return answer.throttle_time_ms


def test_enforcement_begins_without_a_restart(kafka, new_gateway, create_topic, unique, tmp_path):
    """Observed clients wait for nothing; after one changed line and SIGHUP the same connection is throttled."""
    settings = tmp_path / "gateway.properties"
    settings.write_text("tidegate.quota.observe=all\nmax.connections.per.ip=500\n")
    gateway = new_gateway("--config", str(settings), "--log-format", "json")
    topic = create_topic(kafka, unique)
    port = min(gateway.ports.values())
    with PlainClient(port, "loader") as client:
        client.alter_quotas({"client-id": "loader"}, {"producer_byte_rate": QUOTA})
        for _ in range(2):
            client.send_produce(topic, value_bytes=OVER)
            assert client.receive_produce().throttle_time_ms == 0
        settings.write_text("tidegate.quota.observe=\nmax.connections.per.ip=500\n")
        gateway.process.send_signal(signal.SIGHUP)
        wait_for_line(gateway, "1 settings and 0 quotas changed")
        client.send_produce(topic, value_bytes=OVER)
        assert client.receive_produce().throttle_time_ms > 10_000
    lines = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
    (altered,) = [line for line in lines if line.get("resource") == "setting"]
    assert (altered["key"], altered["old"], altered["new"]) == ("tidegate.quota.observe", "all", "")


def test_a_mistake_changes_nothing(kafka, new_gateway, create_topic, unique, tmp_path):
    """A file with a mistake is refused as a whole, and settings that need a restart are named."""
    settings = tmp_path / "gateway.properties"
    settings.write_text("tidegate.quota.observe=all\n")
    gateway = new_gateway("--config", str(settings))
    with PlainClient(min(gateway.ports.values()), "loader") as client:
        client.alter_quotas({"client-id": "loader"}, {"producer_byte_rate": QUOTA})
    topic = create_topic(kafka, unique)
    settings.write_text("tidegate.quota.observe=\nmax.connections=many\n")
    gateway.process.send_signal(signal.SIGHUP)
    end = wait_for_line(gateway, "kept the current settings and quotas: .*max.connections")
    settings.write_text("tidegate.quota.obsreve=all\n")
    gateway.process.send_signal(signal.SIGHUP)
    end = wait_for_line(
        gateway,
        "kept the current settings and quotas: unknown setting .*did you mean 'tidegate.quota.observe'",
        end,
    )
    assert throttle_time_ms(gateway, topic, "loader") == 0
    settings.write_text("connections.max.idle.ms=1000\n")
    gateway.process.send_signal(signal.SIGHUP)
    end = wait_for_line(
        gateway, "connections.max.idle.ms: changed in the file, takes effect at the next", end
    )
    wait_for_line(gateway, "1 settings and 0 quotas changed", end)
    assert throttle_time_ms(gateway, topic, "loader") > 0


def test_a_quotas_file_is_followed(kafka, new_gateway, create_topic, unique, tmp_path):
    """Quotas of a file are set, changed and removed by SIGHUP, and cannot be altered by a client."""
    quotas = tmp_path / "quotas.yaml"
    one = """\
version: 1
settings: {tidegate.quota.smooth: all}
quotas:
  - client-id: {name: %s}
    producer_byte_rate: 100KB
"""
    quotas.write_text(one % "first")
    gateway = new_gateway("--quotas", str(quotas))
    assert "ignored settings of" in gateway.log
    topic = create_topic(kafka, unique)
    assert throttle_time_ms(gateway, topic, "first") > 0
    assert throttle_time_ms(gateway, topic, "second") == 0
    quotas.write_text(one % "second")
    gateway.process.send_signal(signal.SIGHUP)
    end = wait_for_line(gateway, "0 settings and 2 quotas changed")
    assert throttle_time_ms(gateway, topic, "first") == 0
    assert throttle_time_ms(gateway, topic, "second") > 0
    quotas.write_text("version: 2\n")
    gateway.process.send_signal(signal.SIGHUP)
    wait_for_line(gateway, "kept the current settings and quotas: .*quotas.yaml", end)
    assert throttle_time_ms(gateway, topic, "second") > 0


def test_metrics_of_each_broker(kafka, new_gateway):
    """The metrics listener has the port of its setting plus the id of the broker."""
    base = free_port(1)
    gateway = new_gateway("--override", f"tidegate.metrics.listener=127.0.0.1:{base}")
    wait_for_line(gateway, f"metrics of broker 1 at http://127.0.0.1:{base + 1}/")
    with urlopen(f"http://127.0.0.1:{base + 1}/metrics", timeout=WAIT_S) as answer:
        assert b"kafka_server_" in answer.read()
