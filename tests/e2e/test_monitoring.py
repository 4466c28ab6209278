"""The metrics listener of a real broker, as Prometheus, `tidegate top`, `tidegate explain` and a browser see it."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.broker import Broker
from tests.e2e.browser import opened
from tests.e2e.plain_client import PlainClient
from tests.e2e.test_throttle import burst_throttle_ms

_URL = re.compile(r"tidegate metrics at (https?://\S+)/\n")
_TOKEN = "0123456789abcdef0123456789abcdef"
_HOSTILE = '<img src=x onerror="document.title=1">\n"\\'
_NARROW, _WIDE = 360, 1200  # CSS pixels


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker with a metrics listener, which the tests share."""
    directory = tmp_path_factory.mktemp("metered")
    broker = Broker(directory, {"tidegate.metrics.listener": "127.0.0.1:0"}).start()
    yield broker
    broker.close()
    assert "Traceback" not in broker.log, broker.log


def url_of(broker: Broker) -> str:
    """Return the URL of the broker's metrics."""
    return broker.wait_log(_URL)[1]


def fetched(url: str, **headers: str) -> str:
    """Return what a URL gives."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as response:
        text: str = response.read().decode()
    return text


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "80"},
    )


def sample(text: str, name: str, **labels: str) -> float:
    """Return one number of a scrape."""
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name}{{{pairs}}} ")]
    return float(line.rpartition(" ")[2])


def limit(broker: Broker, client_id: str, **values: float | None) -> None:
    """Set quotas of a client id."""
    with PlainClient(broker.port, "admin") as admin:
        admin.alter_quotas({"client-id": client_id}, values)


def test_a_throttled_client_is_seen_everywhere(
    metered: Broker, create_topic: Callable[..., str], unique: str
) -> None:
    """Limit, rate and throttle in the scrape, the JSON, `top` and `explain`; scrapes in between change no throttle."""
    url, topic = url_of(metered), create_topic(metered, unique)
    limit(metered, unique, producer_byte_rate=1000.0)
    with PlainClient(metered.port, unique) as client:
        for _ in range(3):
            fetched(f"{url}/metrics")
        size = client.send_produce(topic, value_bytes=30_000)
        assert client.receive_produce().throttle_time_ms == burst_throttle_ms(size=size, bound=1000.0)
        before_s = time.monotonic()
        found = json.loads(fetched(f"{url}/entities"))
        text = fetched(f"{url}/metrics")
        labels = {"quota_type": "Produce", "client_id": unique}
        assert sample(text, "tidegate_quota_limit", **labels) == 1000.0
        used = sample(text, "tidegate_quota_utilization_ratio", **labels)
        rate = sample(text, "kafka_server_produce_byte_rate", client_id=unique)
        # Over the ten seconds of full samples, or the time since the request where that is more.
        assert size / (11.0 + time.monotonic() - before_s) < rate <= size / 10.0
        assert used == rate / 1000.0
        assert sample(text, "kafka_server_produce_throttle_time", client_id=unique) > 10_000
        (entity,) = [entity for entity in found["entities"] if entity["client_id"] == unique]
        assert entity == found["entities"][0]
        assert (entity["limit"], entity["throttled_connections"]) == (1000.0, 1)
        left_ms = entity["throttled_until_ms"] - found["time_ms"]
        assert 0 < left_ms <= burst_throttle_ms(size=size, bound=1000.0)
        assert entity["reason"] == "produce quota exceeded"

        done = tidegate("top", "--metrics", url, "--once", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["entities"][0]["client_id"] == unique
        table = tidegate("top", "--metrics", f"{url}/metrics", "--once").stdout
        assert max(map(len, table.splitlines())) <= 80
        (line,) = [line for line in table.splitlines() if f" {unique} " in line]
        assert re.search(r"Produce +\d\.\d KiB +1000 B +\d+ % 1 to \d\d:\d\d:\d\d$", line), line

        done = tidegate("explain", "--metrics", url, "--client-id", unique)
        assert done.returncode == 0
        assert f"Produce (producer_byte_rate): limit 1000 B/s of client-id='{unique}'\n" in done.stdout
        assert f"  * client-id='{unique}': 1000 B/s, applies\n" in done.stdout
        assert re.search(
            r"throttled: 1 connection for another [\d.]+ s, until \S+, produce quota exceeded", done.stdout
        )
        done = tidegate("explain", "--metrics", url, "--client-id", unique, "--json")
        (quota,) = [each for each in json.loads(done.stdout)["quotas"] if each["quota_type"] == "Produce"]
        assert (quota["limit"], len(quota["levels"]), quota["throttled_connections"]) == (1000.0, 8, 1)
    limit(metered, unique, producer_byte_rate=None)


@pytest.mark.usefixtures("signals")
def test_top_fits_a_short_terminal(metered: Broker, create_topic: Callable[..., str], unique: str) -> None:
    """Of more entities than lines, the last line has the number of the others."""
    topic = create_topic(metered, unique)
    names = [f"{unique}-{number}" for number in range(6)]
    for name in names:
        limit(metered, name, producer_byte_rate=1e9)
        with PlainClient(metered.port, name) as client:
            client.send_produce(topic, value_bytes=100)
            client.receive_produce()
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (8, 80))
    command = [sys.executable, "-m", "tidegate", "top", "--metrics", url_of(metered), "--every", "0.1"]
    environment = {**os.environ, "TERM": "xterm"}
    for size in ("LINES", "COLUMNS"):  # would win over the size of the terminal
        environment.pop(size, None)
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as run:
        os.close(theirs)
        shown = b""
        while b" more" not in shown and shown.count(b"throttled") < 9:  # so often redrawn
            shown += os.read(ours, 65_536)
        run.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # of a terminal that is closed
            while os.read(ours, 65_536):
                pass
    os.close(ours)
    assert re.search(r"\n… and \d+ more", shown.decode()), shown
    assert run.returncode == 130
    for name in names:
        limit(metered, name, producer_byte_rate=None)


def test_errors_of_the_commands_have_hints(metered: Broker, tmp_path: Path) -> None:
    """No listener, not a metrics listener, no client, and a path that is none."""
    nobody = "http://127.0.0.1:1"
    for command in (("top", "--once"), ("explain", "--user", "a")):
        done = tidegate(*command, "--metrics", nobody)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(
            f"error: cannot reach the metrics listener at {nobody}: Connection refused\n"
        )
        assert "hint: start the broker with --override tidegate.metrics.listener=" in done.stderr
    done = tidegate("top", "--metrics", metered.address)
    assert done.stderr.startswith("error: cannot reach the metrics listener at http://127.0.0.1:")
    done = tidegate("explain", "--metrics", url_of(metered))
    assert done.stderr.startswith("error: no client is named, expected --user, --client-id or both\n")
    done = tidegate("top", "--metrics", "127.0.0.1:9404/x")
    assert done.stderr.splitlines()[1] == "hint: write http://127.0.0.1:9404"


def test_a_token_is_asked_for(new_broker: Callable[..., Broker], tmp_path: Path) -> None:
    """On all addresses the listener starts with a token; the commands send it from a file."""
    token_file, wrong_file = tmp_path / "token", tmp_path / "wrong"
    token_file.write_text(f"{_TOKEN}\n")
    wrong_file.write_text(_TOKEN[::-1])
    broker = new_broker(tidegate_metrics_listener="0.0.0.0:0", tidegate_metrics_token_file=str(token_file))
    url = url_of(broker).replace("0.0.0.0", "127.0.0.1")
    for options in ((), ("--token-file", str(wrong_file))):
        done = tidegate("top", "--metrics", url, "--once", *options)
        assert done.returncode == 2
        assert "(status 401)\nhint: use --token-file" in done.stderr
    assert tidegate("top", "--metrics", url, "--once", "--token-file", str(token_file)).returncode == 0
    assert "tidegate_build_info" in fetched(f"{url}/metrics", Authorization=f"Bearer {_TOKEN}")
    assert _TOKEN not in broker.log


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tidegate.metrics.listener": "0.0.0.0:9404"}, "which other machines may reach"),
        ({"tidegate.metrics.listener": "9404"}, "expected HOST:PORT"),
        (
            {"tidegate.metrics.listener": "127.0.0.1:0", "tidegate.metrics.token.file": "/nowhere"},
            "cannot read the token file '/nowhere': No such file or directory",
        ),
    ],
)
def test_a_broker_without_a_usable_listener_does_not_start(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    """It says what is wrong, with a hint where there is one."""
    overrides = [part for name, text in settings.items() for part in ("--override", f"{name}={text}")]
    done = tidegate("serve", "--port", "0", "--data", str(tmp_path / "data"), *overrides)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_each_node_has_its_own_metrics(tmp_path: Path) -> None:
    """Ports follow each other, or are any free ones."""
    broker = Broker(tmp_path, {"tidegate.metrics.listener": "127.0.0.1:0"}, nodes=2).start()
    try:
        broker.wait_log(re.compile(rf"{_URL.pattern}(?s:.*){_URL.pattern}"))
        urls = _URL.findall(broker.log)
        assert [json.loads(fetched(f"{url}/entities"))["node_id"] for url in urls] == [1, 2]
    finally:
        broker.close()


def test_a_browser_shows_the_entities(
    metered: Broker, create_topic: Callable[..., str], unique: str, tmp_path: Path
) -> None:
    """Limit against rate, throttled connections with their reason; any name is text; light, dark, narrow and keys."""
    url, topic = url_of(metered), create_topic(metered, unique)
    limit(metered, _HOSTILE, producer_byte_rate=1000.0)
    with PlainClient(metered.port, _HOSTILE) as client:
        client.send_produce(topic, value_bytes=200_000)
        client.receive_produce()
        with opened(f"{url}/", tmp_path / "home") as page:
            page.wait_until("document.querySelectorAll('tr.throttled').length >= 1")
            text = page.run("document.querySelector('tr.throttled').innerText")
            assert "1000 B/s" in text
            assert "produce quota exceeded" in text
            name = page.run("document.querySelector('tr.throttled td:nth-child(2)').textContent")
            assert name == _HOSTILE
            assert page.run("document.querySelectorAll('img').length") == 0
            assert page.run("document.querySelector('tr.throttled svg line') !== null")
            state = page.run("document.querySelector('[role=status]').textContent")
            found = re.fullmatch(r"Node 1: (\d+) (entity|entities), \d+ throttled\.", state)
            assert found is not None, state
            assert (found[2] == "entity") == (found[1] == "1")
            colours = set()
            for scheme in ("light", "dark"):
                for width in (_NARROW, _WIDE):
                    page.look(width=width, scheme=scheme)
                    assert page.run("document.documentElement.scrollWidth <= window.innerWidth"), (
                        scheme,
                        width,
                    )
                    assert page.run("document.querySelector('tr.throttled td:last-child').offsetWidth") > 180
                colours.add(page.run("getComputedStyle(document.body).backgroundColor"))
            assert len(colours) == 2
            page.run("document.querySelector('#pause').focus()")
            page.press_enter()
            assert page.run("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
            assert page.run("document.querySelector('[role=status]') !== null")
            assert page.run("document.querySelectorAll('th:not([scope])').length") == 0
            assert set(page.requests) <= {f"{url}/", f"{url}/entities", "data:,"}
            assert page.complaints == []
    limit(metered, _HOSTILE, producer_byte_rate=None)


def test_an_observed_client_is_told_apart_from_a_throttled_one(
    new_broker: Callable[..., Broker], create_topic: Callable[..., str], unique: str, tmp_path: Path
) -> None:
    """In `top`, `explain`, the page, and at the link for its developer."""
    token_file = tmp_path / "token"
    token_file.write_text(f"{_TOKEN}\n")
    broker = new_broker(
        tidegate_metrics_listener="127.0.0.1:0",
        tidegate_metrics_token_file=str(token_file),
        tidegate_quota_observe=f"client-id={unique}",
    )
    url, topic = url_of(broker), create_topic(broker, unique)
    limit(broker, unique, producer_byte_rate=1000.0)
    asked = ("--metrics", url, "--token-file", str(token_file))
    with PlainClient(broker.port, unique) as client:

        def exceed() -> None:
            """Send more than the quota allows, so that the look that follows shows it, however late it is."""
            client.send_produce(topic, value_bytes=900_000)
            assert client.receive_produce().throttle_time_ms == 0

        exceed()
        table = tidegate("top", *asked, "--once").stdout
        assert ", 0 throttled, 1 would be (observed)\n" in table
        assert re.search(r" >999 % observed, >99 s$", table, re.MULTILINE), table
        exceed()
        explained = tidegate("explain", *asked, "--client-id", unique).stdout
        would_be = r"a request now would be throttled for (at least )?[\d,]+ ms, but is not"
        assert re.search(f"  observed: {would_be}\n", explained), explained
        with opened(f"{url}/", tmp_path / "home") as page:
            page.wait_until("!document.querySelector('#login').hidden")
            page.run(f"document.querySelector('#token').value = '{_TOKEN}'")
            exceed()
            page.run("document.querySelector('#login').requestSubmit()")
            page.wait_until("document.querySelectorAll('#rows tr').length >= 1")
            assert page.run("document.querySelectorAll('tr.throttled').length") == 0
            assert re.search(
                "observed: would be throttled for [0-9]+ ms, but is not",
                page.run("document.querySelector('#rows').innerText"),
            )
            state = page.run("document.querySelector('[role=status]').textContent")
            assert state.endswith(", 0 throttled, 1 would be (observed).")
        link = tidegate("explain", *asked, "--client-id", unique, "--link").stdout.strip()
        exceed()
        assert re.search(f"Observed: {would_be}", fetched(link))


def test_a_link_is_for_the_developer_of_a_client(
    new_broker: Callable[..., Broker], create_topic: Callable[..., str], unique: str, tmp_path: Path
) -> None:
    """The operator makes it; a browser and `explain` show one client with it, and nothing of it is in the log."""
    token_file, wrong_file = tmp_path / "token", tmp_path / "wrong"
    token_file.write_text(f"{_TOKEN}\n")
    wrong_file.write_text(_TOKEN[::-1])
    broker = new_broker(tidegate_metrics_listener="127.0.0.1:0", tidegate_metrics_token_file=str(token_file))
    url, topic = url_of(broker), create_topic(broker, unique)
    made = ("explain", "--client-id", _HOSTILE, "--link", "--metrics", url, "--token-file")
    assert "(status 401)\nhint: use --token-file" in tidegate(*made, str(wrong_file)).stderr
    done = tidegate(*made, str(token_file), "--expires", "15m")
    assert (done.returncode, done.stderr) == (0, "")
    link = done.stdout.removesuffix("\n")
    assert link.startswith(f"{url}/explain?user=ANONYMOUS&client-id=%3Cimg")
    limit(broker, _HOSTILE, producer_byte_rate=1000.0)
    with PlainClient(broker.port, _HOSTILE) as client:
        client.send_produce(topic, value_bytes=200_000)
        client.receive_produce()
        shown = tidegate("explain", "--metrics", link)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert re.search(
            r"throttled: 1 connection for another [\d.]+ s, until \S+, produce quota exceeded", shown.stdout
        )
        (quota,) = (
            each
            for each in json.loads(fetched(link, Accept="application/json"))["quotas"]
            if each["quota_type"] == "Produce"
        )
        assert (quota["limit"], quota["throttled_connections"]) == (1000.0, 1)
        with opened(link, tmp_path / "home") as page:
            text = page.run("document.body.innerText")
            assert "Throttled now: Produce." in text
            assert "produce quota exceeded" in text
            assert page.run("document.querySelector('bdi:nth-of-type(2)').textContent") == _HOSTILE
            assert page.run("document.querySelectorAll('img, script').length") == 0
            colours = set()
            for scheme in ("light", "dark"):
                for width in (_NARROW, _WIDE):
                    page.look(width=width, scheme=scheme)
                    assert page.run("document.documentElement.scrollWidth <= window.innerWidth")
                colours.add(page.run("getComputedStyle(document.body).backgroundColor"))
            assert len(colours) == 2
            page.run("document.querySelector('summary').focus()")
            page.press_enter()
            assert page.run("document.querySelector('details').open")
            assert page.run("document.querySelectorAll('details tbody tr').length") == 8
            assert page.run("document.querySelectorAll('th:not([scope])').length") == 0
            assert set(page.requests) == {link, "data:,"} or set(page.requests) == {link}
            assert page.complaints == []
    signature = link.rpartition("=")[2]
    refused = tidegate("explain", "--metrics", link.replace("ANONYMOUS", "alice"))
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: {url}: the link is wrong or has expired (status 403)\n"
        "hint: ask the operator of the broker for a new one: tidegate explain --link\n"
    )
    broken = tidegate("explain", "--metrics", f"{link}&x=1"), tidegate("top", "--metrics", link)
    for done in (*broken, tidegate("explain", "--metrics", link.replace("127.0.0.1", "[x"))):
        assert done.returncode == 2
        assert signature not in done.stderr
        assert "Traceback" not in done.stderr
    assert signature not in broker.log


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--user", "a", "--link"), "error: --link needs --token-file: "),
        (
            ("--user", "a", "--link", "--token-file", "TOKEN", "--expires", "31d"),
            "error: --expires must be from 1s to",
        ),
        (("--user", "a", "--expires", "1h"), "error: --expires needs --link"),
        (("--user", "a", "--link", "--bootstrap-server", "x:1"), "error: --link is for a metrics listener"),
        (("--link",), "error: no client is named"),
        (("--link", "--token-file", "TOKEN", "--client-id", "x" * 20_000), "error: the link has 20"),
        (("--user", os.fsdecode(b"\xff")), "error: --user is "),
    ],
)
def test_options_of_links_are_checked(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """Before any listener is asked."""
    token_file = tmp_path / "token"
    token_file.write_text(_TOKEN)
    done = tidegate("explain", *(str(token_file) if text == "TOKEN" else text for text in options))
    assert done.returncode == 2
    assert done.stderr.startswith(said)
