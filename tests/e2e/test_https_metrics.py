"""The metrics listener of a real broker over TLS, as `tidegate top`, `tidegate explain` and a browser use it."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.broker import Broker
from tests.e2e.browser import opened
from tests.e2e.plain_client import PlainClient
from tests.e2e.test_monitoring import limit, tidegate, url_of
from tests.e2e.tls_broker import Certificates
from tests.unit.tls.certificates import identity

TOKEN = "0123456789abcdef0123456789abcdef"
OWN = "listener.name.metrics."
TRUST = "hint: set ssl.truststore.location in --command-config FILE to the certificate of the authority that signed it"
SHOW = "hint: set ssl.keystore.location in --command-config FILE to a key and certificate that the listener trusts"


def https_of(broker: Broker) -> str:
    """Return the URL of the broker's metrics with the name that the certificate has."""
    url = url_of(broker)
    assert url.startswith("https://0.0.0.0:")
    return url.replace("0.0.0.0", "localhost")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Return the certificates of the broker, of a client, and of a stranger."""
    made = Certificates.make(tmp_path_factory.mktemp("certificates"), "localhost", "carol")
    made.write("stranger", identity("stranger"))
    return made


@pytest.fixture(scope="module")
def mutual(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker whose metrics are on all addresses, for clients with a certificate, without a token."""
    settings = {f"{OWN}{name}": text for name, text in certificates.settings("localhost").items()}
    listener = {"tidegate.metrics.listener": "https://0.0.0.0:0", f"{OWN}ssl.client.auth": "required"}
    broker = Broker(tmp_path_factory.mktemp("mutual"), {**listener, **settings}).start()
    yield broker
    broker.close()
    assert "Traceback" not in broker.log, broker.log


def properties(directory: Path, **settings: str) -> str:
    """Write a file for `--command-config`; return its path."""
    path = directory / f"{len(list(directory.iterdir()))}.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return str(path)


def test_top_and_explain_with_a_client_certificate(
    mutual: Broker, certificates: Certificates, tmp_path: Path, unique: str
) -> None:
    """From a `client.properties` as Kafka's tools take it."""
    own = properties(tmp_path, **certificates.settings("carol"))
    options = ("--metrics", https_of(mutual), "--command-config", own)
    limit(mutual, unique, producer_byte_rate=1000.0)
    with PlainClient(mutual.port, unique) as client:
        client.send_produce("t", value_bytes=100)
        client.receive_produce()
    done = tidegate("top", "--once", "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert unique in [entity["client_id"] for entity in json.loads(done.stdout)["entities"]]
    done = tidegate("explain", "--client-id", unique, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"limit 1000 B/s of client-id='{unique}'\n" in done.stdout


def test_errors_of_tls_have_hints(mutual: Broker, certificates: Certificates, tmp_path: Path) -> None:
    """The listener's certificate, that of the client, and a URL that does not fit; no step of TLS is shown."""
    url, trusting = https_of(mutual), certificates.settings("carol")
    without_key = {name: text for name, text in trusting.items() if "keystore" not in name}
    stranger = certificates.settings("stranger")
    other_trust = {**trusting, "ssl.truststore.location": str(certificates.file("stranger"))}
    reach = f"error: cannot reach the metrics listener at {url}: "
    cases = [
        (
            (),
            f"{reach}its certificate is not accepted: self-signed certificate in certificate chain\n{TRUST}\n",
        ),
        (other_trust, f"{reach}its certificate is not accepted: "),
        (without_key, f"{reach}it requires a client certificate\n{SHOW}\n"),
        (stranger, f"{reach}it refuses the client certificate (tlsv1 alert unknown ca)\n{SHOW}\n"),
        ({"ssl.trustore.location": "x"}, "warning: unknown setting 'ssl.trustore.location'; did you mean"),
        (
            {**trusting, "ssl.keystore.location": "/nowhere"},
            "error: ssl.keystore.location is '/nowhere', which cannot be read: No such file or directory\n",
        ),
    ]
    for settings, text in cases:
        own = ("--command-config", properties(tmp_path, **settings)) if settings else ()
        for command in (("top", "--once"), ("explain", "--user", "a")):
            done = tidegate(*command, "--metrics", url, *own)
            assert (done.returncode, done.stdout) == (2, ""), done
            assert done.stderr.startswith(text), done.stderr
    own = ("--command-config", properties(tmp_path, **trusting))
    done = tidegate("top", "--metrics", url.replace("localhost", "127.0.0.1"), *own)
    assert "127.0.0.1" in done.stderr
    assert done.stderr.endswith("\nhint: write a host name in --metrics that the certificate has\n")
    done = tidegate("top", "--metrics", url.replace("https", "http"))
    assert done.stderr == (
        f"error: {url.replace('https', 'http')}: the metrics listener uses TLS (status 400)\n"
        "hint: write https:// in the URL\n"
    )
    done = tidegate("top", "--metrics", url.replace("https", "http"), *own)
    assert done.stderr.startswith("error: --command-config has no effect on http://")
    assert "client sent no certificate, but ssl.client.auth is required" in mutual.log


def test_https_where_there_is_http(new_broker: Callable[..., Broker]) -> None:
    """The command says so at once."""
    url = url_of(new_broker(tidegate_metrics_listener="127.0.0.1:0"))
    done = tidegate("top", "--metrics", url.replace("http:", "https:"))
    assert done.stderr == (
        f"error: cannot reach the metrics listener at {url.replace('http:', 'https:')}: it does not use TLS\n"
        "hint: write http:// in --metrics\n"
    )


def test_a_link_over_tls(certificates: Certificates, tmp_path: Path) -> None:
    """With the token alone the operator makes it; `explain` and a browser open it, and the page asks its listener."""
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    settings = {
        **certificates.settings("localhost"),
        "tidegate.metrics.listener": "https://0.0.0.0:0",
        "tidegate.metrics.token.file": str(token_file),
    }
    broker = Broker(tmp_path / "broker", settings)
    broker.directory.mkdir()
    broker.start()
    try:
        url = https_of(broker)
        trust = {
            name: text for name, text in certificates.settings("carol").items() if "keystore" not in name
        }
        own = ("--command-config", properties(tmp_path, **trust))
        options = ("--metrics", url, *own)
        done = tidegate("explain", "--client-id", "c1", "--link", *options, "--token-file", str(token_file))
        assert (done.returncode, done.stderr) == (0, "")
        link = done.stdout.strip()
        assert re.match(rf"{url}/explain\?user=ANONYMOUS&client-id=c1&expires=\d+&signature=", link)
        done = tidegate("explain", "--metrics", link, *own)
        assert (done.returncode, done.stderr) == (0, "")
        assert "client-id='c1'" in done.stdout
        refused = tidegate("explain", "--metrics", link)
        assert refused.stderr.endswith(f"{TRUST}\n")
        assert "signature" not in refused.stderr
        with opened(link, tmp_path / "home", any_certificate=True) as page:
            assert "c1" in page.run("document.body.innerText")
            assert page.complaints == []
        with opened(f"{url}/", tmp_path / "home2", any_certificate=True) as page:
            page.wait_until("!document.getElementById('login').hidden")
            for token, shown in ((TOKEN[::-1], "This token is not accepted."), (TOKEN, "Node 1: ")):
                page.run(f"document.getElementById('token').value = '{token}'")
                page.run("document.getElementById('login').requestSubmit()")
                page.wait_until(f"document.body.innerText.includes('{shown}')")
    finally:
        broker.close()
    assert "Traceback" not in broker.log, broker.log


def test_a_wrong_store_stops_a_start(certificates: Certificates, tmp_path: Path) -> None:
    """Also that of a broker that has run: one clear error, and the next start with the right store works."""
    settings = {f"{OWN}{name}": text for name, text in certificates.settings("localhost").items()}
    broker = Broker(tmp_path, {"tidegate.metrics.listener": "https://127.0.0.1:0", **settings}).start()
    assert broker.process is not None
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(20) == 0
    (tmp_path / "empty.pem").write_text("")
    for location, said in (
        ("/nowhere.pem", f"{OWN}ssl.keystore.location is '/nowhere.pem', which cannot be read: No such file"),
        (
            str(tmp_path / "empty.pem"),
            f"{OWN}ssl.keystore.location {str(tmp_path / 'empty.pem')!r} has 0 private",
        ),
    ):
        overrides = {**broker.overrides, f"{OWN}ssl.keystore.location": location}
        options = [part for name, text in overrides.items() for part in ("--override", f"{name}={text}")]
        done = tidegate("serve", "--port", "0", "--data", str(broker.data_dir), *options)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {said}"), done.stderr
    broker.start()
    assert url_of(broker).startswith("https://127.0.0.1:")
    broker.close()
