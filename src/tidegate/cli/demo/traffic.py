"""The traffic of `tidegate demo`: its brokers, its clients, and the board that shows them.

    python -m tidegate.cli.demo.traffic {checkout|loader|analytics} HOST:PORT

Each client is a process with confluent-kafka. Four times a second it prints one line of JSON with its activity since
the last line (`Report`). It exits when its standard input ends, so it never outlives the demo.

Topics and quotas are set over the wire, by Tidegate's own client: confluent-kafka does not offer AlterClientQuotas
(KIP-546).
"""

import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import IO, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tidegate.child_python import module_command
from tidegate.client import Address, Admin, BrokerError, ClientSettings, NewTopic, run_as_admin
from tidegate.errors import TidegateError
from tidegate.pipeline.report.text import duration_text
from tidegate.quota import Alteration

__all__ = [
    "CLIENTS",
    "CONTROL",
    "QUOTAS",
    "RATE_LIMITS",
    "Report",
    "Tally",
    "Traffic",
    "board",
    "percentile",
    "run_traffic",
    "set_client_quotas",
]

CONTROL = "control"
"""A second checkout, at a broker without other clients: it shows how fast the machine itself is."""

_MIB = 1024 * 1024
QUOTAS: Mapping[str, Mapping[str, float]] = {
    "loader": {"producer_byte_rate": 2.0 * _MIB},
    "analytics": {"consumer_byte_rate": 4.0 * _MIB},
}
"""The quotas that the demo sets: client id → quota key → value."""

RATE_LIMITS = {client: next(iter(values.values())) for client, values in QUOTAS.items()}
"""Client id → bytes per second, of `QUOTAS`."""

_ORDERS_TOPIC, _BULK_TOPIC = "orders", "bulk"
_BULK_PARTITIONS = 4

_REPORT_S = 0.25
_RECENT_S = 2.0
_SETTLE_S = 3.0
_POLL_S = 0.05
_TIMEOUT_S = 20.0
_ERRORS_SHOWN = 3
_ORDER_BYTES = 400
_ORDER_INTERVAL_S = 0.005
_BULK_VALUE_BYTES = 200_000
_BULK_CONNECTIONS = 8
_MS_PER_S = 1000


@dataclass(slots=True)
class Report:
    """A client's activity in one period. bytes: the values of all records acknowledged or received."""

    bytes: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    throttles_ms: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tally(Report):
    """The sum of one client's reports in one phase of the demo.

    started_s: the start of the phase; all times are those of the monotonic clock.
    moments_ms: the latencies of each report on its own.
    """

    started_s: float = 0.0
    moments_ms: list[list[float]] = field(default_factory=list)
    _received: list[tuple[float, int]] = field(default_factory=list)  # when, and bytes

    def add(self, report: Report, now_s: float) -> None:
        """Add a report that was received at `now_s`."""
        self.bytes += report.bytes
        self.latencies_ms += report.latencies_ms
        if report.latencies_ms:
            self.moments_ms.append(report.latencies_ms)
        self.throttles_ms += [ms for ms in report.throttles_ms if ms > 0]
        self.errors += report.errors
        self._received.append((now_s, report.bytes))

    def recent_bytes_per_second(self, now_s: float) -> float:
        """Return the rate over the last two seconds, or since the phase began if that is later."""
        span_s = min(_RECENT_S, now_s - self.started_s)
        recent = sum(count for received_s, count in self._received if received_s > now_s - _RECENT_S)
        return recent / span_s if span_s > 0 else 0.0

    def typical_latency_ms(self, share: float) -> float:
        """Return the median, over all reports, of a percentile of each report's latencies.

        A few reports from moments in which the disk or another process slowed the machine do not change it.
        """
        return percentile([percentile(latencies, share) for latencies in self.moments_ms], 0.5)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all values do not exceed (nearest rank); NaN without values.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([1.0], 0.99)
    (2.0, 1.0)
    """
    return sorted(values)[max(math.ceil(len(values) * share), 1) - 1] if values else math.nan


class _Meter:
    """The activity of this process since its last report, from librdkafka's callbacks."""

    def __init__(self, client_id: str, address: str) -> None:
        self._report, self._due_s = Report(), time.monotonic() + _REPORT_S
        self.settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "client.id": client_id,
            "throttle_cb": self.add_throttle,
        }

    def print_due(self) -> None:
        """Print a report if one is due."""
        if time.monotonic() >= self._due_s:
            self._due_s += _REPORT_S
            report, self._report = self._report, Report()
            print(json.dumps(asdict(report)), flush=True)

    def add_record(self, error: KafkaError | None, message: Message) -> None:
        """Count a record that was consumed, or acknowledged with its latency (`on_delivery`)."""
        if error is not None:
            self._report.errors.append(str(error))
            return
        self._report.bytes += len(message.value() or b"")
        latency_s = message.latency()
        if latency_s is not None:
            self._report.latencies_ms.append(round(latency_s * _MS_PER_S, 3))

    def add_throttle(self, event: Any) -> None:
        """Count the throttle time of a response (`throttle_cb`)."""
        self._report.throttles_ms.append(round(event.throttle_time * _MS_PER_S))


def checkout(meter: _Meter) -> None:
    """Send a small order every 5 ms, each in a request of its own, and wait for its acknowledgement."""
    producer = Producer({**meter.settings, "acks": "all", "linger.ms": 0})
    order, due_s = os.urandom(_ORDER_BYTES), time.monotonic()
    while True:
        meter.print_due()
        producer.produce(_ORDERS_TOPIC, order, on_delivery=meter.add_record)
        due_s += _ORDER_INTERVAL_S
        while (left_s := due_s - time.monotonic()) > 0:
            producer.poll(left_s)
        producer.poll(0)


def loader(meter: _Meter) -> None:
    """Send as much as the broker accepts, over several connections with the same client id."""
    settings: dict[str, Any] = {
        **meter.settings,
        "acks": 1,
        "linger.ms": 5,
        "batch.size": 1_000_000,
        "max.in.flight.requests.per.connection": 1,
        "queue.buffering.max.messages": 20,
    }
    producers, value = [Producer(settings) for _ in range(_BULK_CONNECTIONS)], os.urandom(_BULK_VALUE_BYTES)
    while True:
        meter.print_due()
        full = 0
        for at, producer in enumerate(producers):
            producer.poll(0)
            try:
                producer.produce(
                    _BULK_TOPIC, value, partition=at % _BULK_PARTITIONS, on_delivery=meter.add_record
                )
            except BufferError:
                full += 1
        producers[0].poll(0.002 if full == len(producers) else 0)


def analytics(meter: _Meter) -> None:
    """Read all records of the loader from the beginning, as fast as the broker returns them."""
    more = {"group.id": "analytics", "enable.auto.commit": False, "queued.max.messages.kbytes": 16_384}
    consumer = Consumer({**meter.settings, **more})
    consumer.assign([TopicPartition(_BULK_TOPIC, at, OFFSET_BEGINNING) for at in range(_BULK_PARTITIONS)])
    while True:
        meter.print_due()
        for message in consumer.consume(100, timeout=_REPORT_S / 5):
            meter.add_record(message.error(), message)


CLIENTS: Mapping[str, Callable[[_Meter], None]] = {
    client.__name__: client for client in (checkout, loader, analytics)
}
"""Client id → its function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The tallies of the clients: without quotas, in the seconds after quotas were set, and under quotas."""

    before: dict[str, Tally]
    settling: dict[str, Tally]
    after: dict[str, Tally]
    after_s: float


def run_traffic(console: Console, directory: Path, *, seconds: float) -> Traffic:
    """Run the clients for `seconds` without quotas and for `seconds` under quotas. Raises `TidegateError`.

    directory: where the brokers write. The data of the broker with the clients remains in `broker`.
    """
    idle = directory / "idle-broker"
    topics = [
        NewTopic(name=name, partitions=partitions, replication_factor=1)
        for name, partitions in ((_ORDERS_TOPIC, 1), (_BULK_TOPIC, _BULK_PARTITIONS))
    ]
    with (
        _running_broker(directory / "broker") as port,
        _running_broker(idle, "--override", "tidegate.usage.enable=false") as idle_port,
    ):
        for each in (port, idle_port):
            _as_admin(each, lambda admin: admin.create_topics(topics))
        traffic = _run_clients(console, port, idle_port, seconds=seconds)
        _as_admin(port, lambda admin: admin.delete_topics([_BULK_TOPIC]))  # frees its disk space
    shutil.rmtree(idle)
    return traffic


def set_client_quotas(port: int, quotas: Mapping[str, Mapping[str, float]]) -> None:
    """Set quotas, client id → key → value, at the broker on `port`. Raises `TidegateError` if it refuses them."""
    alterations = [
        Alteration(entity=[("client-id", client_id)], ops=[*values.items()])
        for client_id, values in quotas.items()
    ]
    _as_admin(port, lambda admin: admin.alter_client_quotas(alterations))


def _as_admin(port: int, ask: Callable[[Admin], Awaitable[Mapping[Any, BrokerError | None]]]) -> None:
    """Send requests to the broker and wait for their results. Raises `TidegateError`."""
    address = Address("127.0.0.1", port)
    settings = ClientSettings(addresses=(address,), client_id="tidegate-demo", api_timeout_s=_TIMEOUT_S)
    for error in run_as_admin(settings, ask, in_thread=True).values():
        if error is not None:
            raise error


def _run_clients(console: Console, port: int, idle_port: int, *, seconds: float) -> Traffic:
    ports = {**dict.fromkeys(CLIENTS, port), CONTROL: idle_port}
    processes: dict[str, Popen[str]] = {}
    phases: list[dict[str, Tally]] = []

    def begin_phase() -> None:
        now_s = time.monotonic()
        phases.append({name: Tally(started_s=now_s) for name in ports})

    def receive(name: str, lines: IO[str]) -> None:
        for line in lines:
            phases[-1][name].add(Report(**json.loads(line)), time.monotonic())

    def check(name: str, process: Popen[str]) -> None:
        if process.poll() is not None:
            raise TidegateError(f"the client {name!r} ended by itself with exit code {process.returncode}")
        if errors := phases[-1][name].errors:
            raise TidegateError(f"the client {name!r} was refused: {'; '.join(errors[:_ERRORS_SHOWN])}")

    def show(title: str, limits: Mapping[str, float], span_s: float) -> None:
        """Show the board for `span_s`, and leave its last state on the console."""
        tallies = {name: phases[-1][name] for name in CLIENTS}
        current_board, end_s = partial(board, tallies, title=title, limits=limits), time.monotonic() + span_s
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while (left_s := end_s - time.monotonic()) > 0:
                for name, process in processes.items():
                    check(name, process)
                if console.is_terminal:
                    live.update(current_board(now_s=time.monotonic()), refresh=True)
                time.sleep(min(_REPORT_S, left_s))
        console.print(current_board(now_s=time.monotonic()))

    with ExitStack() as stack:
        begin_phase()
        for name, at in ports.items():
            client = "checkout" if name == CONTROL else name
            running = _running(__name__, client, f"127.0.0.1:{at}", stdin=PIPE, stdout=PIPE)
            processes[name] = process = stack.enter_context(running)
            threading.Thread(target=receive, args=(name, process.stdout), daemon=True).start()
        show(f"without quotas, {seconds:.0f} seconds", {}, seconds)
        set_client_quotas(port, QUOTAS)
        begin_phase()
        console.print("\nquotas set over the wire (AlterClientQuotas): loader 2 MiB/s, analytics 4 MiB/s\n")
        title = f"the first {_SETTLE_S:.0f} seconds under quotas: a new window lets a burst through"
        show(title, RATE_LIMITS, _SETTLE_S)
        begin_phase()
        show(f"under quotas, {seconds:.0f} seconds", RATE_LIMITS, seconds)
        begin_phase()
    before, settling, after, _ = phases
    return Traffic(before=before, settling=settling, after=after, after_s=seconds)


@contextmanager
def _running(module: str, *arguments: str, **streams: Any) -> Iterator[Popen[str]]:
    """Run a Python module for the duration of the block.

    It has a process group of its own: Ctrl-C reaches only the demo, which then stops it.
    """
    process = Popen(module_command(module, *arguments), text=True, process_group=0, **streams)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_TIMEOUT_S)
        except TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _running_broker(data: Path, *options: str) -> Iterator[int]:
    """Run `tidegate serve` for the duration of the block and yield its port; its log is next to `data`."""
    port_file, log_file = data.with_suffix(".port"), data.with_suffix(".log")
    port_file.unlink(missing_ok=True)
    options = ("serve", "--port", "0", "--data", str(data), "--port-file", str(port_file), *options)
    with (
        log_file.open("ab") as log,
        _running("tidegate", *options, stdin=DEVNULL, stdout=log, stderr=log) as process,
    ):
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not port_file.exists():
            if time.monotonic() >= deadline_s or process.poll() is not None:
                raise TidegateError("the broker did not start", hint=f"see its log: {str(log_file)!r}")
            time.sleep(_POLL_S)
        port = int(port_file.read_text())
        port_file.unlink()
        yield port


def board(tallies: Mapping[str, Tally], *, title: str, limits: Mapping[str, float], now_s: float) -> Table:
    """Return the table at `now_s`. limits: client id → bytes per second."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("client")
    for name in ("MiB/s now", "mean", "limit", "throttled", "longest", "p50", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for client, tally in tallies.items():
        throttles_ms, limit = tally.throttles_ms, limits.get(client)
        table.add_row(
            client,
            f"{tally.recent_bytes_per_second(now_s) / _MIB:.2f}",
            f"{tally.bytes / max(now_s - tally.started_s, 0.001) / _MIB:.2f}",
            "none" if limit is None else f"{limit / _MIB:.2f}",
            f"{len(throttles_ms)} times" if throttles_ms else "never",
            duration_text(max(throttles_ms)) if throttles_ms else "–",
            *(_latency_text(percentile(tally.latencies_ms, share)) for share in (0.5, 0.99)),
        )
    return table


def _latency_text(ms: float) -> str:
    if math.isnan(ms):
        return "–"
    return f"{ms:.1f} ms" if ms < _MS_PER_S else f"{ms / _MS_PER_S:.1f} s"


def _exit_at_end_of_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    CLIENTS[sys.argv[1]](_Meter(*sys.argv[1:]))
