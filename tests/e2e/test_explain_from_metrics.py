"""`tidegate explain --bootstrap-server --prometheus`: definitions of a broker, and a recorded answer of Prometheus.

`tests/e2e/long_prometheus.py` does the same with a real Kafka, a real JMX exporter and a real Prometheus.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.e2e.broker import Broker
from tests.e2e.plain_client import PlainClient

from tidegate.cli.main import main

ANSWER = Path(__file__).parents[1] / "vectors" / "prometheus" / "jmx-exporter.json"
SERIES = json.loads(ANSWER.read_text())["data"]["result"]
_BLOCKED = ("msgspec", "numba", "numpy", "pandas", "py4j", "pyarrow", "pyspark")


class _Handler(BaseHTTPRequestHandler):
    """Answers as the Prometheus did whose answer was recorded, at the time of its last point."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        data: object = sorted({series["metric"]["__name__"] for series in SERIES})
        if parts.path.endswith("/query"):
            name = parse_qs(parts.query)["query"][0].partition("{")[0]
            found = [series for series in SERIES if series["metric"]["__name__"] == name]
            result = [{"metric": series["metric"], "value": series["values"][-1]} for series in found]
            data = {"resultType": "vector", "result": result}
        body = json.dumps({"status": "success", "data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Write no log."""


@pytest.fixture
def prometheus() -> Iterator[str]:
    """Return the URL of a server on loopback that gives the recorded answer."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as own:
        thread = threading.Thread(target=own.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{own.server_address[1]}"
        own.shutdown()
        thread.join()


@pytest.fixture
def limited(broker: Broker) -> Iterator[Broker]:
    """Return a broker whose definitions are those of the recorded Kafka."""
    with PlainClient(broker.port, "administrator") as client:
        client.alter_quotas(
            {"user": None, "client-id": None}, {"producer_byte_rate": 1e6, "request_percentage": 10}
        )
        client.alter_quotas({"user": None, "client-id": "slow"}, {"producer_byte_rate": 20_000.0})
        yield broker
        for names, keys in (
            ({"user": None, "client-id": None}, ("producer_byte_rate", "request_percentage")),
            ({"user": None, "client-id": "slow"}, ("producer_byte_rate",)),
        ):
            client.alter_quotas(names, dict.fromkeys(keys))


@pytest.mark.parametrize("from_file", [False, True])
def test_rates_and_throttles_are_those_of_the_metrics(
    limited: Broker, prometheus: str, capsys: pytest.CaptureFixture[str], *, from_file: bool
) -> None:
    """Limit and levels come from the cluster, the rest from the metrics of each broker."""
    source = ["--prometheus", str(ANSWER) if from_file else prometheus]
    asked = ["explain", "--bootstrap-server", limited.address, *source]
    assert main([*asked, "--client-id", "slow"]) == 0
    text = capsys.readouterr().out
    assert (
        "Produce (producer_byte_rate): limit 19.5 KiB/s of user=<default>, client-id='slow'\n"
        "  shared by all clients with user='ANONYMOUS', client-id='slow'\n"
        "  127.0.0.1:27569: rate 0 B/s, 0 % of the limit, throttled by 5,013 ms on average\n"
    ) in text
    assert main([*asked, "--client-id", "app", "--json"]) == 0
    quotas = {each["quota_type"]: each for each in json.loads(capsys.readouterr().out)["quotas"]}
    [produce] = quotas["Produce"]["brokers"]
    assert produce == {
        "broker": "127.0.0.1:27569",
        "rate": 851398.2558139536,
        "utilization": pytest.approx(0.8513982558139536),
        "mean_throttle_time_ms": 0.0,
    }
    assert quotas["Request"]["brokers"][0]["utilization"] == pytest.approx(0.15971142792711528)
    assert quotas["Fetch"]["brokers"] == []
    assert main([*asked, "--client-id", "nobody"]) == 0
    assert "no broker has metrics of this quota" in capsys.readouterr().out


def test_the_base_install_is_enough(limited: Broker) -> None:
    """Without a library of the extra 'pipeline'."""
    options = ["--bootstrap-server", limited.address, "--prometheus", str(ANSWER), "--client-id", "slow"]
    program = (
        "import sys\n"
        f"for name in {_BLOCKED}: sys.modules[name] = None\n"
        "from tidegate.cli.main import main\n"
        f"sys.exit(main(['explain', *{options!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "throttled by 5,013 ms on average" in done.stdout


def test_options_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics need the cluster whose quotas they are of, and options for metrics need metrics."""
    assert main(["explain", "--client-id", "a", "--prometheus", str(ANSWER)]) == 2
    assert "--prometheus needs --bootstrap-server" in capsys.readouterr().err
    assert main(["explain", "--client-id", "a", "--match", "x"]) == 2
    assert "--match needs --prometheus" in capsys.readouterr().err
