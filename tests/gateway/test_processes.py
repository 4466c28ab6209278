"""`tidegate gateway --processes`: several processes at the same ports share the quotas of a broker."""

import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from bench.ports import free_port
from tests.e2e.throttled_clients import Admissions, Load, fetch_plain_waiting, produce_plain_waiting
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.named_brokers import NamedGateway, name_of
from tests.gateway.raw_client import RawClient
from tests.gateway.test_reloading import wait_for_line
from tests.waiting import wait_until

from tidegate.api_keys import METADATA
from tidegate.cli.main import main

PROCESSES = 3
OPTIONS = (
    *("--processes", str(PROCESSES)),
    *("--override", "tidegate.usage.parquet.enable=false"),
    *("--override", "quota.window.num=4"),
)
RATE = 200_000
VALUE_BYTES = 10_000
WINDOW_S = 3.0
SECONDS = 9.0
WAIT_S = 20.0
CLIENTS = 12
_LOCAL, _STATE, _INODE = 1, 3, 9  # columns of /proc/net/tcp
_ESTABLISHED = "01"
RATE_OF = {
    "": r"kafka_server_socket_server_metrics_broker_connection_accept_rate",
    "listener.name.plaintext.": (
        r'kafka_server_socket_server_metrics_connection_accept_rate\{listener="PLAINTEXT"\}'
    ),
}
ASKED = (
    METADATA,
    12,
    {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False},
)


class SeveralProcesses(GatewayProcess):
    """A gateway with several processes. `close` ends those, too, where the parent has been killed."""

    @property
    def children(self) -> list[int]:
        """Return the ids of the processes that serve."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(number) for number in found.split()]


def is_running(pid: int) -> bool:
    """Return whether a process has not ended; one that has ended and was not waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def several(kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeveralProcesses]:
    """Return a gateway with several processes, whose settings are in a file."""
    directory = tmp_path_factory.mktemp("several")
    settings = directory / "gateway.properties"
    settings.write_text("max.connections.per.ip=3000\n")
    gateway = SeveralProcesses(directory, kafka.address, (*OPTIONS, "--config", str(settings)))
    gateway.start()
    yield gateway
    gateway.close()


@pytest.fixture
def own(kafka, tmp_path: Path) -> Iterator[SeveralProcesses]:
    """Return a gateway with several processes that the test starts and ends."""
    gateway = SeveralProcesses(tmp_path / "own", kafka.address, OPTIONS)
    yield gateway
    gateway.close()


def connections_of(gateway: SeveralProcesses) -> list[int]:
    """Return how many connections of clients each process has: accepted, and not closed by the client."""
    ports = {f"{port:04X}" for port in gateway.ports.values()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    accepted = {
        f"socket:[{row[_INODE]}]"
        for row in rows
        if row[_LOCAL].rpartition(":")[2] in ports and row[_STATE] == _ESTABLISHED
    }
    return [len(accepted & open_files(pid)) for pid in gateway.children]


def open_files(pid: int) -> set[str]:
    """Return the names of what a process has open."""
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(each))
    return found


def set_quota(gateway: SeveralProcesses, client_id: str, **values: float) -> None:
    """Set a quota, and wait until all processes have read it: each connection asks one of them."""
    with RawClient(gateway.port, "admin") as admin:
        admin.set_quotas(client_id, **values)
    ((key, value),) = values.items()
    known = 0
    deadline = time.monotonic() + WAIT_S
    while known < 10 * PROCESSES:  # connections at random processes, one after the other
        with RawClient(gateway.port, "admin") as admin:
            known = known + 1 if admin.quota(client_id, key) == value else 0
        assert time.monotonic() < deadline, gateway.log


def admitted(admissions: Admissions, begin: float, seconds: float) -> int:
    """Return the bytes of a range of time."""
    return sum(size for at, size in admissions if begin <= at < begin + seconds)


def spread(several: SeveralProcesses) -> list[int]:
    """Open 45 connections of one address; return how many each process got."""
    with ExitStack() as closing:
        for _ in range(45):
            closing.enter_context(RawClient(several.port, "spread"))
        wait_until(lambda: sum(connections_of(several)) == 45, WAIT_S)
        return connections_of(several)


def test_connections_are_spread(several):
    """The connections of one address reach every process."""
    found = spread(several)
    assert len(found) == PROCESSES
    assert min(found) > 0, found  # 15 each


@pytest.mark.parametrize(
    ("work", "quota"),
    [(produce_plain_waiting, "producer_byte_rate"), (fetch_plain_waiting, "consumer_byte_rate")],
)
def test_processes_share_the_quota_of_a_broker(work, quota, kafka, several, create_topic, unique):
    """Connections of one client id, at several processes, get together what they get at one process."""
    topic = create_topic(kafka, unique)
    with RawClient(several.port, "admin") as admin:
        admin.produce(topic, VALUE_BYTES)
    set_quota(several, unique, **{quota: RATE})
    load = Load(port=several.port, client_id=unique, topic=topic, value_bytes=VALUE_BYTES, seconds=SECONDS)
    begin = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        jobs = [pool.submit(work, load) for _ in range(CLIENTS)]
        wait_until(lambda: sum(connections_of(several)) == CLIENTS, SECONDS)
        found = connections_of(several)
        results = [job.result() for job in jobs]
    assert sum(each > 0 for each in found) > 1, found
    together = sum(admitted(each, begin, SECONDS) for each in results)
    limit, burst = RATE * SECONDS, RATE * WINDOW_S
    assert limit - burst <= together <= limit + 1.5 * burst, f"{together:,} at {found}"


def test_hangup_reaches_all_processes(several, tmp_path):
    """Each process reads the file again, and a setting that does not fit several processes changes nothing."""
    settings = Path(several.options[several.options.index("--config") + 1])

    def reload(text: str, pattern: str) -> None:
        since = len(several.log)
        settings.write_text(text)
        several.process.send_signal(signal.SIGHUP)
        for number in range(1, PROCESSES + 1):
            wait_for_line(several, rf"process {number}: {pattern}", since)

    reload("max.connections.per.ip=2000\n", "files read again: 1 settings and 0 quotas changed")
    reload("tidegate.quota.smooth=all\n", "kept the current settings and quotas: tidegate.quota.smooth")
    settings.write_text("max.connections.per.ip=2000\n")


def test_a_killed_process_is_started_again(several):
    """The log names it, and the others serve meanwhile."""
    killed = several.children[0]
    since = len(several.log)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: f"(pid {killed}) was killed by SIGKILL: starting it again" in several.log, WAIT_S)
    with RawClient(several.port, "meanwhile") as client:
        assert client.topic_ids("no-such-topic") == {}
    wait_until(lambda: re.search(r"process \d serves", several.log[since:]), WAIT_S, told=lambda: several.log)
    assert len(several.children) == PROCESSES
    assert killed not in several.children
    found = spread(several)
    assert min(found) > 0, found


def test_the_usage_record_has_the_requests_of_all_processes(
    own, kafka, create_topic, unique, capsys: pytest.CaptureFixture[str]
):
    """`tidegate usage` adds them up: one client of one broker; the gateway ends, and no process is left."""
    own.start()
    topic = create_topic(kafka, unique)
    children = own.children
    with ExitStack() as closing:
        clients = [closing.enter_context(RawClient(own.port, unique)) for _ in range(CLIENTS)]
        for client in clients:
            client.produce(topic, VALUE_BYTES)
        wait_until(lambda: sum(connections_of(own)) == CLIENTS, WAIT_S)
        found = connections_of(own)
    assert sum(each > 0 for each in found) > 1, found
    assert own.stop() == 0
    assert not any(map(is_running, children))
    assert main(["usage", str(own.usage_dir), "--json"]) == 0
    (group,) = (each for each in json.loads(capsys.readouterr().out)["groups"] if each["client_id"] == unique)
    assert group["requests"] == CLIENTS
    assert group["produce_bytes"] > CLIENTS * VALUE_BYTES


def test_connections_of_an_address_count_in_all_processes(own, kafka, unique):
    """Wherever the kernel spreads them, as many are accepted as one process accepts."""
    most = 7
    own.options += ("--override", f"max.connections.per.ip={most}")
    own.start()
    source = "127.0.0.77"
    with ExitStack() as closing:
        accepted = 0
        for _ in range(60):
            client = closing.enter_context(RawClient(own.port, unique, source=source))
            try:
                client.topic_ids("no-such-topic")
                accepted += 1
            except (ConnectionError, EOFError, AssertionError):
                client.socket.close()
    assert accepted == most


def answered(clients: list[RawClient]) -> list[RawClient]:
    """Return the clients whose response has come."""
    readable, _, _ = select.select([client.socket for client in clients], [], [], 0.0)
    found = []
    for client in clients:
        with suppress(ConnectionError):
            if client.socket in readable and client.socket.recv(1, socket.MSG_PEEK):
                found.append(client)
    return found


def served(clients: list[RawClient], number: int) -> list[RawClient]:
    """Return the clients that are served, so many and no more; the others wait."""
    wait_until(lambda: len(answered(clients)) >= number, WAIT_S)
    time.sleep(0.5)
    found = answered(clients)
    assert len(found) == number
    for client in found:
        client.receive()
    return found


def test_max_connections_is_of_all_processes_together(own, kafka, unique):
    """Clients wait for a slot at any process, and get one when a connection closes, or its process is killed."""
    most = 12
    own.options += ("--override", f"max.connections={most}")
    own.start()
    with ExitStack() as closing:

        def connect(number: int) -> list[RawClient]:
            clients = [closing.enter_context(RawClient(own.port, unique)) for _ in range(number)]
            for client in clients:
                client.send(*ASKED)
            return clients

        clients = connect(most + 6)
        alive = served(clients, most)
        for client in alive[:2]:
            client.socket.close()
        waiting = [client for client in clients if client not in alive]
        alive = alive[2:] + served(waiting, 2)
        _, busiest = max(zip(connections_of(own), own.children, strict=True))
        os.kill(busiest, signal.SIGKILL)
        wait_until(lambda: f"(pid {busiest}) was killed by SIGKILL" in own.log, WAIT_S)
        still = []
        for client in alive:
            with suppress(ConnectionError):
                client.ask(*ASKED)
                still.append(client)
        assert len(still) < most
        waiting = [client for client in waiting if client not in alive]
        served(waiting + connect(most), most - len(still))


def test_an_ip_quota_is_of_all_processes_together(own, kafka, unique, tmp_path):
    """Wherever the kernel spreads them, an address makes as many connections as at one process."""
    rate, source = 3, "127.0.0.78"
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text(f"quotas:\n  - ip: {{name: {source}}}\n    connection_creation_rate: {rate}\n")
    own.options += ("--quotas", str(quotas))
    own.start()
    begun_s = time.monotonic()
    with ExitStack() as closing:
        clients = [closing.enter_context(RawClient(own.port, unique, source=source)) for _ in range(30)]
        connected_s = time.monotonic() - begun_s
        accepted = 0
        for client in clients:
            with suppress(ConnectionError):
                client.ask(*ASKED)
                accepted += 1
    # One more for each third of a second that the connections took, up to twice as many; not shared, thrice as many.
    assert rate * WINDOW_S <= accepted <= int(rate * (WINDOW_S + min(connected_s + 0.1, WINDOW_S)))


def rate_at(port: int, prefix: str) -> float:
    """Return the rate of connections in the metrics at a port."""
    metrics = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    (found,) = re.findall(r"\n" + RATE_OF[prefix] + r" (\S+)", metrics)
    return float(found)


@pytest.mark.parametrize("prefix", ["", "listener.name.plaintext."])
def test_a_rate_of_connections_is_of_all_processes_together(own, kafka, unique, prefix):
    """Each process measures the connections of all, and together they accept what one process accepts."""
    rate, port = 8, free_port(1, processes=PROCESSES)
    own.options += (
        *("--override", f"{prefix}max.connection.creation.rate={rate}"),
        *("--override", f"tidegate.metrics.listener=127.0.0.1:{port}"),
    )
    own.start()
    burst = int(rate * WINDOW_S)

    def is_as_allowed(measured: float) -> bool:
        assert measured < 1.4 * rate  # never: it would only sink below that with time
        return measured > 0.6 * rate

    with ExitStack() as closing:
        begun_s = time.monotonic()
        clients = [closing.enter_context(RawClient(own.port, unique)) for _ in range(PROCESSES * burst)]
        for client in clients:
            client.send(*ASKED)
        wait_until(lambda: len(answered(clients)) >= burst, WAIT_S)
        for number in range(PROCESSES):
            wait_until(lambda number=number: is_as_allowed(rate_at(port + 1 + 1000 * number, prefix)), WAIT_S)
        wait_until(lambda: len(answered(clients)) > burst + rate, WAIT_S)
        accepted, took_s = len(answered(clients)), time.monotonic() - begun_s
    assert accepted <= burst + rate * took_s + PROCESSES, took_s


@pytest.mark.parametrize("connections", [1, 9])
def test_a_client_has_its_whole_mutation_quota(own, kafka, unique, connections: int):
    """All processes charge the same bucket, whether the client has one connection or several."""
    rate, windows = 3.0, 3
    own.options += ("--override", f"controller.quota.window.num={windows}")
    own.start()
    set_quota(own, unique, controller_mutation_rate=rate)
    with ExitStack() as closing:
        clients = [closing.enter_context(RawClient(own.port, unique)) for _ in range(connections)]
        begun_s = time.monotonic()
        created = 0
        for number, client in enumerate(itertools.cycle(clients)):
            answer = client.create_topics((f"{unique}-{number}", 1))
            if any(topic["error_code"] == 89 for topic in answer["topics"]):
                break
            created += 1
        took_s = time.monotonic() - begun_s
    # A full bucket, what it is refilled with meanwhile, and one topic more while no tokens are owed.
    full = rate * windows
    assert full <= created <= full + rate * took_s + 1, created


def test_processes_end_with_a_killed_parent(own):
    """Their standard input ends with it."""
    own.start()
    children = own.children
    assert len(children) == PROCESSES
    own.kill()
    wait_until(lambda: not any(map(is_running, children)), WAIT_S)


def test_each_process_has_metrics_of_its_own(own):
    """The port of a process is a thousand above that of the one before."""
    port = free_port(1, processes=PROCESSES)
    own.options += ("--override", f"tidegate.metrics.listener=127.0.0.1:{port}")
    own.start()
    for number in range(PROCESSES):
        url = f"http://127.0.0.1:{port + 1 + 1000 * number}"
        wait_for_line(own, re.escape(f"tidegate metrics of broker 1 at {url}/ (process {number + 1})"))
        wait_until(
            lambda url=url: (
                f"\ntidegate_gateway_processes {PROCESSES}" in urlopen(url + "/metrics").read().decode()
            ),
            WAIT_S,
        )


class NamedProcesses(NamedGateway, SeveralProcesses):
    """A gateway with several processes, whose only listener distinguishes brokers by name."""


def test_one_port_for_all_brokers_is_served_by_all_processes(kafka, tmp_path: Path):
    """Each process reads the server names of its connections."""
    gateway = NamedProcesses(tmp_path / "named", kafka.address, *OPTIONS)
    try:
        gateway.start()
        with ExitStack() as closing:
            for _ in range(45):
                closing.enter_context(gateway.connect(name_of(1)))
            found = connections_of(gateway)
        assert min(found) > 0, found
        assert gateway.stop() == 0
    finally:
        gateway.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--processes", "two"), "--processes: expected a whole number from 1 to 32, got 'two'"),
        (("--processes", "0"), "--processes: expected a whole number from 1 to 32, got '0'"),
        (
            ("--override", "tidegate.quota.smooth=all"),
            "tidegate.quota.smooth is 'all', and quotas that several",
        ),
        (("--override", "tidegate.kafka.exact=true"), "tidegate.kafka.exact is true, and --processes shares"),
    ],
)
def test_what_cannot_be_combined_is_one_error(options, message, kafka, tmp_path: Path):
    """The gateway ends with exit code 2, and one line says why."""
    ended = subprocess.run(
        [
            *(os.sys.executable, "-m", "tidegate", "gateway", "--upstream", kafka.address),
            *("--listen", f"127.0.0.1:{free_port(4)}", "--data", str(tmp_path), "--processes", "2", *options),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr.count(message) == 1, ended.stderr
    assert ended.stderr.count("error") == 1, ended.stderr


def test_a_port_that_another_gateway_uses_is_refused(several, tmp_path: Path):
    """Two gateways with several processes do not share a port by accident."""
    other = SeveralProcesses(tmp_path, several.upstream, OPTIONS, base_port=several.base_port)
    with pytest.raises(AssertionError, match="the gateway ended"):
        other.start()
    assert f"cannot listen on 127.0.0.1:{several.port}" in other.log
    other.close()
