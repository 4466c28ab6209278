"""`tidegate recommend --prometheus`: a recorded answer, a server on loopback, and what goes wrong.

`tests/vectors/prometheus/jmx-exporter.json` is an answer of Prometheus 2.42 that scraped the JMX exporter 1.0.1 in
Apache Kafka 4.3.1 (`tests/e2e/long_prometheus.py` records it again).
"""

import base64
import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tidegate.cli.main import main
from tidegate.config.quotas_file import parse_quotas_file
from tidegate.pipeline.prometheus.spellings import load_spellings

ANSWER = Path(__file__).parents[2] / "vectors" / "prometheus" / "jmx-exporter.json"
ODD = 'team:a "x", y=1*'
_BLOCKED = ("msgspec", "numba", "numpy", "pandas", "py4j", "pyarrow", "pyspark")


def _largest(name: str, client: str) -> float:
    """Return the largest value of a recorded series."""
    series = json.loads(ANSWER.read_text())["data"]["result"]
    return max(
        float(value)
        for one in series
        if (one["metric"]["__name__"], one["metric"]["clientId"]) == (name, client)
        for _, value in one["values"]
    )


def _values(text: str) -> dict[str, dict[str, float]]:
    return {
        dict(entry.entity)["client-id"] or "<default>": dict(entry.values)
        for entry in parse_quotas_file(text).entries
    }


def test_a_recorded_answer_leads_to_quotas(capsys: pytest.CaptureFixture[str]) -> None:
    """Peaks times the headroom, for the names that Kafka had; what was throttled and what is a broker is said."""
    asked = ["--protect", f"client-id={ODD}", "--protect", "client-id=app"]
    assert main(["recommend", "--prometheus", str(ANSWER), "--force", "--by", "both", *asked]) == 0
    text = capsys.readouterr().out
    values = _values(text)
    for client in (ODD, "app"):
        wanted = max(65536.0, 1.5 * _largest("kafka_server_quota_byte_rate", _jmx(client)))
        assert wanted <= values[client]["producer_byte_rate"] <= 1.14 * wanted
    said = " ".join(text.replace("#", "").split())
    assert "Points are 1 s apart." in said
    assert "produce user=ANONYMOUS client-id=slow: " in said
    assert "Ignored: clients of the brokers themselves (user=ANONYMOUS client-id=1)." in said


def _jmx(client: str) -> str:
    return '"team:a \\"x\\", y=1\\*"' if client == ODD else client


def test_a_document_has_the_same_quotas(capsys: pytest.CaptureFixture[str]) -> None:
    """And what metrics say beside them; there is no forecast."""
    assert main(["recommend", "--prometheus", str(ANSWER), "--force", "--json", "--no-default"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["forecast"] is None
    assert found["metrics"]["interval_s"] == 1.0
    [throttled] = found["metrics"]["throttled"]
    assert throttled["entity_client_id"] == "slow"
    assert throttled["largest_mean_throttle_ms"] == _largest("kafka_server_quota_throttle_time", "slow")
    names = [entry["entity"]["client-id"] for entry in found["quotas"]]
    assert "app" in names
    assert None not in names


def test_a_time_is_cut_out_of_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """A time without points has no metrics."""
    code = main(["recommend", "--prometheus", str(ANSWER), "--force", "--to", "2020-01-01"])
    assert code == 2
    assert "has no metrics of Kafka's clients" in capsys.readouterr().err


def test_little_data_proposes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a minute is not enough, and the exit code says so."""
    assert main(["recommend", "--prometheus", str(ANSWER)]) == 3
    assert "too little data for a proposal: usage in " in capsys.readouterr().err


def test_the_base_install_is_enough() -> None:
    """Without a library of the extra 'pipeline'."""
    program = (
        "import sys\n"
        f"for name in {_BLOCKED}: sys.modules[name] = None\n"
        "from tidegate.cli.main import main\n"
        f"sys.exit(main(['recommend', '--prometheus', {str(ANSWER)!r}, '--force', '--as', 'kafka-configs']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--add-config producer_byte_rate=" in done.stdout


# --- a server ---------------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    """Answers as told, and keeps the headers of requests."""

    answers: Callable[[str, dict[str, list[str]]], tuple[int, bytes]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        parts = urlsplit(self.path)
        self.server.seen.append((parts.path, self.headers.get("Authorization")))
        status, body = self.server.answers(parts.path, parse_qs(parts.query))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://elsewhere.example/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Write no log."""


@pytest.fixture
def server() -> Iterator[_Server]:
    """Return a server on loopback."""
    with _Server() as own:
        thread = threading.Thread(target=own.serve_forever, args=(0.01,))
        thread.start()
        yield own
        own.shutdown()
        thread.join()


def _success(data: object) -> tuple[int, bytes]:
    return 200, json.dumps({"status": "success", "data": data}).encode()


def _of_kafka(path: str, asked: dict[str, list[str]]) -> tuple[int, bytes]:
    """Answer as a Prometheus with one client, which used 1 MB/s for ten minutes."""
    labels = {"user": "alice", "client_id": "app", "instance": "kafka:7071"}
    if path.endswith("/values"):
        return _success(["up", "kafka_server_produce_byte_rate", "kafka_server_produce_throttle_time"])
    end = float((asked.get("end") or asked["time"])[0])
    query = asked["query"][0]
    result: list[dict[str, object]] = [{"metric": labels, "values": [[end, "1000000"]]}]
    if query.startswith("max(max_over_time"):
        result = [{"metric": {}, "values": [[end - at, "1"] for at in range(600, 0, -10)]}]
    elif "throttle" in query:
        result = [{"metric": labels, "values": [[end, "NaN"]]}]
    elif path.endswith("/query"):
        result = [{"metric": labels, "values": [[end - at, "1"] for at in (90, 60, 30, 0)]}]
    return _success({"resultType": "matrix", "result": result})


def test_a_server_is_asked(server: _Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the credential of a file in each request, and with the distance of scrapes in the notes."""
    server.answers = _of_kafka
    secret = tmp_path / "secret"
    secret.write_text("me:hidden\n")
    asked = ["--prometheus", f"{server.url}/prom/", "--basic-auth-file", str(secret), "--headroom", "1"]
    assert main(["recommend", *asked]) == 0
    said = capsys.readouterr()
    assert 1e6 <= _values(said.out)["<default>"]["producer_byte_rate"] <= 1.14e6
    assert "Scrapes are 30 s apart." in said.out
    header = f"Basic {base64.b64encode(b'me:hidden').decode()}"
    assert {path.rpartition("/api/v1/")[0] for path, _ in server.seen} == {"/prom"}
    assert {sent for _, sent in server.seen} == {header}
    assert "hidden" not in said.out + said.err


@pytest.mark.parametrize(
    ("status", "body", "problem", "hint"),
    [
        (401, b"", "answers '401 Unauthorized'", "--bearer-token-file or --basic-auth-file"),
        (404, b"", "answers '404 Not Found'", "such as http://localhost:9090"),
        (302, b"", "answers '302 Found'", "redirects are not followed"),
        (503, b"", "answers '503 Service Unavailable'", "a shorter time with --from"),
        (
            422,
            b'{"status":"error","error":"too many samples"}',
            "refuses the query: too many samples",
            "--from",
        ),
        (400, b"<html>", "refuses the query: status 400", "--match"),
        (200, b"<html>", "is not JSON of Prometheus", "expected the JSON answer"),
        (200, b'{"status":"success","data":7}', "is not an answer of Prometheus", None),
        (200, b'{"status":"success","data":[1]}', "is not an answer of Prometheus", None),
    ],
)
def test_what_a_server_refuses_is_said(
    server: _Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    status: int,
    body: bytes,
    problem: str,
    hint: str | None,
) -> None:
    """One error with a hint, and no secret in it."""
    server.answers = lambda path, asked: (status, body)
    token = tmp_path / "token"
    token.write_text("t0psecret")
    code = main(["recommend", "--prometheus", server.url, "--bearer-token-file", str(token)])
    said = capsys.readouterr().err
    assert code == 2
    assert problem in said
    assert hint is None or hint in said
    assert "t0psecret" not in said


@pytest.mark.parametrize(
    ("names", "problem", "hint"),
    [
        (
            ["up", "my_byte_rate"],
            "looked for kafka_server_quota_byte_rate, ",
            "near: my_byte_rate; --metric-names",
        ),
        (["up"], "has no metrics of Kafka's clients", "only while a quota of the type is set"),
        (
            ["kafka_server_produce_user_bob_byte_rate"],
            "only in names such as",
            "move the exporter's quota rules",
        ),
    ],
)
def test_missing_metrics_are_named(
    server: _Server, capsys: pytest.CaptureFixture[str], names: list[str], problem: str, hint: str
) -> None:
    """What was looked for, what is near, and why there may be none."""
    server.answers = lambda path, asked: _success(names)
    assert main(["recommend", "--prometheus", server.url]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert hint in said


def test_a_server_that_is_not_there_is_named(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The reason of the system, and the URL."""
    server.server_close()
    assert main(["recommend", "--prometheus", server.url]) == 2
    assert f"cannot reach {server.url}: Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ([], "no source is given"),
        (["usage", "--prometheus", "answer.json"], "cannot be used together"),
        (["usage", "--match", "a='b'"], "--match needs --prometheus"),
        (["--prometheus", "a.json", "--match", "a='b'"], "--match is for the URL of a server"),
        (["--prometheus", "a.json", "--master", "local[2]"], "--master is for a usage record"),
        (["--prometheus", "http://h:1", "--prometheus", "b.json"], "is given with another source"),
        (["--prometheus", "http://me:hidden@h:1"], "must not contain a user or password"),
        (["--prometheus", "ftp://h"], "must be http://HOST:PORT or https://HOST:PORT"),
        (["--prometheus", "http://h/api?query=up"], "must be http://HOST:PORT"),
        (["--prometheus", "http://h:1", "--from", "2020-01-01"], "at most 366 days"),
        (["--prometheus", "http://h:1", "--from", "2020-01-02", "--to", "2020-01-01"], "later than --from"),
        (["--prometheus", "answer.json", "--last", "1h"], "--last is for a server, not for a saved answer"),
        (
            ["--prometheus", "http://h:1", "--last", "1h", "--to", "2020-01-01"],
            "--last cannot be used with --from and --to",
        ),
        (["--prometheus", "a.json", "--json", "--as", "kafka-configs"], "--json cannot be used with --as"),
        (["--prometheus", "missing.json"], "cannot read 'missing.json': No such file"),
        (["--prometheus", "http://h:1", "--basic-auth-file", "missing"], "cannot read 'missing'"),
    ],
)
def test_unusable_options_are_refused(
    asked: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one error, which repeats no password."""
    assert main(["recommend", *asked]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert "hidden" not in said


def test_a_token_file_must_have_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no secret is not repeated either."""
    for content in (b"", b"a\nb", b"\xff", b"x" * 20_000):
        (tmp_path / "token").write_bytes(content)
        code = main(
            [
                "recommend",
                "--prometheus",
                "http://127.0.0.1:1",
                "--bearer-token-file",
                str(tmp_path / "token"),
            ]
        )
        assert code == 2
        assert "must contain one line of printable text" in capsys.readouterr().err


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The block of docs/metrics-as-a-source.md that reads a saved answer is run as written."""
    page = (Path(__file__).parents[3] / "docs" / "metrics-as-a-source.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n([^`]+)\n```\n\n```text\n([^`]+)```", page)
    [(command, shown)] = blocks
    (tmp_path / "answer.json").write_bytes(ANSWER.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == shown


def test_names_of_the_page_are_read(tmp_path: Path) -> None:
    """The page's file of names can be used as it is."""
    page = (Path(__file__).parents[3] / "docs" / "metrics-as-a-source.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```yaml\n(.+?)```", page, re.DOTALL)
    (tmp_path / "names.yaml").write_text(text)
    assert len(load_spellings(tmp_path / "names.yaml").names) == 4
