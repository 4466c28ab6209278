"""Quotas and explanations out of metrics: a real Prometheus scrapes the JMX exporter in a real Kafka, and ours.

For the same traffic, the largest value in Prometheus is what `tidegate limits` finds in the record of all requests.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench.ladder.brokers import KafkaBench
from bench.ports import free_port
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse
from tests.e2e.broker import Broker
from tests.e2e.plain_client import PlainClient, fetch_request, receive_frame
from tests.e2e.prometheus_server import ROOT, prometheus
from tests.e2e.tls_broker import Certificates
from tests.request_log.brokers import LOG4J2

from tidegate.config.quotas_file import parse_quotas_file

ODD = 'team:a "x", y=1*'
SECONDS = 25.0
SEEN_WITHIN_S = 30.0

# The rules of the exporter's usual configurations, in their order: the first one also matches user and client id.
EXPORTER = """\
lowercaseOutputName: true
rules:
- pattern: kafka.server<type=(.+), client-id=(.+)><>([a-z-]+)
  name: kafka_server_quota_$3
  type: GAUGE
  labels: {resource: "$1", clientId: "$2"}
- pattern: kafka.server<type=(.+), user=(.+)><>([a-z-]+)
  name: kafka_server_quota_$3
  type: GAUGE
  labels: {resource: "$1", user: "$2"}
"""


@dataclass
class ExportingKafka(KafkaBench):
    """Apache Kafka with the JMX exporter on `metrics_port`, and its request log."""

    metrics_port: int = 0

    @property
    def request_log(self) -> Path:
        """Return the file of the request log."""
        return self.directory / "requests.log"

    def _command(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._command()
        (self.directory / "log4j2.yaml").write_text(LOG4J2.format(log=self.request_log))
        rules = self.directory / "exporter.yml"
        rules.write_text(EXPORTER)
        libs = Path(command[command.index("-cp") + 1]).parent
        agent = next(libs.glob("jmx_prometheus_javaagent-*.jar"))
        self.metrics_port = free_port()
        return [
            command[0],
            f"-javaagent:{agent}=127.0.0.1:{self.metrics_port}:{rules}",
            *command[1:],
        ], environment


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[ExportingKafka]:
    """Return a running Kafka with exporter and request log."""
    options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    broker = ExportingKafka("kafka", tmp_path / "kafka", java_options=options)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def _set_large_defaults(port: int) -> None:
    """Set a default quota of each type that throttles nothing, so that clients have metrics, and a small one."""
    values = {
        "producer_byte_rate": 1e12,
        "consumer_byte_rate": 1e12,
        "request_percentage": 1e6,
        "controller_mutation_rate": 1e6,
    }
    large = ([("user", None), ("client-id", None)], [(key, value, False) for key, value in values.items()])
    small = ([("user", None), ("client-id", "slow")], [("producer_byte_rate", 20_000.0, False)])
    with PlainClient(port, "administrator") as client:
        request = AlterClientQuotasRequest[0](entries=[large, small], validate_only=False)
        answer = client.ask(request, AlterClientQuotasResponse[0])
    assert [entry.error_code for entry in answer.entries] == [0, 0]
    time.sleep(0.5)  # Kafka applies a quota soon after it has answered


def _traffic(address: str) -> None:
    """Produce at an even rate as two clients, too much as a third, read as a fourth, and create a topic."""
    admin = AdminClient({"bootstrap.servers": address, "client.id": "deployer"})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(timeout=20)
    producers = {
        name: Producer({"bootstrap.servers": address, "client.id": name, "linger.ms": 0})
        for name in ("app", ODD, "slow")
    }
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "client.id": "reader",
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["orders"])
    for _ in range(15):
        producers["slow"].produce("orders", os.urandom(20_000))  # ten seconds of its quota are 200 kB
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for name in ("app", ODD):
            producer = producers[name]
            producer.produce("orders", os.urandom(20_000 if name == "app" else 5_000))
            producer.poll(0)
        consumer.poll(0)
        time.sleep(0.02)
    for producer in producers.values():
        assert producer.flush(20) == 0
    consumer.close()


def _tidegate(*args: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", *map(str, args)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _asked(url: str, path: str, **asked: object) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(asked)}", timeout=30) as answer:
        return json.loads(answer.read())["data"]


def _wait_until_scraped(url: str, name: str) -> None:
    until = time.monotonic() + SEEN_WITHIN_S
    while not _asked(url, "query", query=name)["result"]:
        assert time.monotonic() < until, f"{name} was not scraped"
        time.sleep(0.1)


def _needs(url: str) -> dict[str, dict[str, float]]:
    """Return the proposal of `tidegate recommend --prometheus` without headroom, by client id."""
    names = ("app", ODD, "reader", "deployer")
    protect = [word for name in names for word in ("--protect", f"client-id={name}")]
    text = _tidegate("recommend", "--prometheus", url, "--force", "--by", "both", "--headroom", "1", *protect)
    assert "produce user=ANONYMOUS client-id=slow: " in text, text
    assert "Scrapes are 1 s apart." in " ".join(text.replace("#", "").split()), text
    return {dict(entry.entity)["client-id"]: dict(entry.values) for entry in parse_quotas_file(text).entries}


def _explained(address: str, url: str) -> None:
    """Compare `tidegate explain` with the series in Prometheus, for a client with traffic and a throttled one."""

    def quota_of(name: str, quota_type: str) -> dict[str, Any]:
        to = ("--bootstrap-server", address, "--prometheus", url)
        document = json.loads(_tidegate("explain", *to, "--client-id", name, "--json"))
        (quota,) = [each for each in document["quotas"] if each["quota_type"] == quota_type]
        return quota

    slow = quota_of("slow", "Produce")
    assert (slow["limit"], slow["entity"]) == (20_000.0, {"user": None, "client-id": "slow"})
    (throttled,) = slow["brokers"]
    assert throttled["mean_throttle_time_ms"] > 1000
    for name, quota_type in (("app", "Produce"), (ODD, "Produce"), ("reader", "Fetch"), ("app", "Request")):
        quota = quota_of(name, quota_type)
        (use,) = quota["brokers"]
        assert use["mean_throttle_time_ms"] == 0.0
        assert 0 < use["utilization"] == use["rate"] / quota["limit"] < 1


def _limits(usage: Path) -> dict[tuple[str, str], float]:
    """Return the limits of bytes of `tidegate limits` by quota type and client id."""
    found = json.loads(_tidegate("limits", usage, "--by", "both", "--json"))
    key = "never_throttled_bytes_per_second"
    return {(row["quota_type"], row["client_id"]): row[key] for row in found["entities"] if key in row}


def _same(needs: dict[str, dict[str, float]], limits: dict[tuple[str, str], float]) -> None:
    """Compare what needs one scrape a second found with what all requests say.

    A proposal is at least 64 KiB/s and rounded up by at most 14 %; a scrape each second sees nearly the largest value.
    """
    for name, key, quota_type in (
        ("app", "producer_byte_rate", "Produce"),
        (ODD, "producer_byte_rate", "Produce"),
        ("reader", "consumer_byte_rate", "Fetch"),
    ):
        floor = 65536.0
        limit = max(limits[quota_type, name], floor)
        assert 0.9 * limit <= needs[name][key] <= 1.15 * limit, (name, needs, limits)


@pytest.mark.java
def test_kafkas_metrics_need_what_its_request_log_needs(kafka: ExportingKafka, tmp_path: Path) -> None:
    """The exporter's names and labels are understood, also of an odd client id; peaks are those of the log.

    `tidegate explain` shows rates and throttles of the same series.
    """
    _set_large_defaults(kafka.port)
    with prometheus(tmp_path / "prometheus", f"127.0.0.1:{kafka.metrics_port}") as url:
        _traffic(kafka.address)
        _wait_until_scraped(url, "kafka_server_quota_byte_rate")
        time.sleep(2.0)  # two more scrapes
        needs = _needs(url)
        _explained(kafka.address, url)
        saved = _save(url, tmp_path)
    _tidegate("import", kafka.request_log, "--out", tmp_path / "usage")
    limits = _limits(tmp_path / "usage")
    _same(needs, limits)
    assert needs["deployer"]["controller_mutation_rate"] >= 1
    text = _tidegate("recommend", "--prometheus", saved, "--force", "--by", "both")
    assert "reader" in text


def _save(url: str, directory: Path) -> Path:
    """Save an answer as docs/metrics-as-a-source.md says."""
    asked = urllib.parse.urlencode(
        {
            "query": '{__name__=~"kafka_server_quota_(byte_rate|request_time|mutation_rate|throttle_time)"}',
            "start": int(time.time() - SECONDS - 10),
            "end": int(time.time()),
            "step": 1,
        }
    )
    path = directory / "answer.json"
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{asked}", timeout=30) as answer:
        path.write_bytes(answer.read())
    if kept := os.environ.get("TIDEGATE_KEEP_ANSWER"):
        Path(kept).write_bytes(path.read_bytes())
    return path


def test_metrics_of_serve_need_what_its_usage_record_needs(
    new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """What Prometheus has scraped from `tidegate serve` leads to the limits of its record."""
    port = free_port()
    broker = new_broker(tidegate_metrics_listener=f"127.0.0.1:{port}")
    _set_large_defaults(broker.port)
    with prometheus(tmp_path / "prometheus", f"127.0.0.1:{port}") as url:
        _traffic(broker.address)
        time.sleep(2.0)  # two more scrapes
        needs = _needs(url)
    broker.stop()
    _same(needs, _limits(broker.data_dir / "usage"))


def test_metrics_are_scraped_over_tls(new_broker: Callable[..., Broker], tmp_path: Path) -> None:
    """With the configuration of docs/monitoring.md: authority, client certificate and token."""
    certificates, port = Certificates.make(tmp_path, "localhost", "carol"), free_port()
    (tmp_path / "token").write_text("0123456789abcdef")
    own = {f"listener.name.metrics.{name}": text for name, text in certificates.settings("localhost").items()}
    settings = {
        "tidegate.metrics.listener": f"https://127.0.0.1:{port}",
        "tidegate.metrics.token.file": str(tmp_path / "token"),
        "listener.name.metrics.ssl.client.auth": "required",
        **own,
    }
    new_broker(**{name.replace(".", "_"): text for name, text in settings.items()})
    files = {
        "authority.pem": certificates.authority_file,
        "prometheus.pem": certificates.file("carol"),
        "prometheus-key.pem": certificates.file("carol"),
        "tidegate-token": tmp_path / "token",
    }
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(scrape_configs:(?:(?!```)[\s\S])*scheme: https[\s\S]*?)```", text)
    block = block.replace('"broker1.example.com:9404"', f'"localhost:{port}"')
    for name, path in files.items():
        block = block.replace(f"/etc/prometheus/{name}", str(path))
    assert "/etc/" not in block
    with prometheus(tmp_path / "prometheus", scrapes=block) as url:
        _wait_until_scraped(url, "tidegate_build_info")


DASHBOARD, RULES = (ROOT / "monitoring" / name for name in ("grafana-dashboard.json", "alert-rules.yml"))


def test_the_dashboard_and_the_alerts_find_what_they_ask_for(
    new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Each panel has values, each rule is healthy, and the alert of a throttled client is pending."""
    port = free_port()
    broker = new_broker(tidegate_metrics_listener=f"127.0.0.1:{port}")
    _set_large_defaults(broker.port)
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]
    with prometheus(tmp_path / "prometheus", f"127.0.0.1:{port}", job="tidegate", rules=RULES) as url:
        _traffic(broker.address)
        _throttle_fetch_and_request(broker)
        time.sleep(2.5)  # two more scrapes
        for title, expr in asked:
            for variable, value in (("$job", ".*"), ("$instance", ".*"), ("$__rate_interval", "1m")):
                expr = expr.replace(variable, value)
            assert _asked(url, "query", query=expr)["result"], (title, expr)
        (group,) = _asked(url, "rules")["groups"]
        states = {rule["name"]: (rule["health"], rule["state"]) for rule in group["rules"]}
    assert {health for health, _ in states.values()} == {"ok"}
    assert states["ClientThrottled"] == ("ok", "pending")
    assert states["TidegateDown"] == ("ok", "inactive")


def _throttle_fetch_and_request(broker: Broker) -> None:
    """Let a client exceed its fetch quota, and another its request quota, so that both are throttled."""
    limits = {"greedy": {"consumer_byte_rate": 1000.0}, "busy": {"request_percentage": 0.001}}
    with PlainClient(broker.port, "greedy") as greedy, PlainClient(broker.port, "busy") as busy:
        _fetch(greedy)  # before it has a limit: a throttled response is empty, and its bytes are not counted
        with PlainClient(broker.port, "administrator") as admin:
            for name, limit in limits.items():
                admin.alter_quotas({"user": None, "client-id": name}, limit)
        _fetch(greedy)
        for _ in range(3):
            busy.served_keys()


def _fetch(client: PlainClient) -> None:
    client.send(fetch_request("orders", max_bytes=100_000))
    receive_frame(client.socket)
