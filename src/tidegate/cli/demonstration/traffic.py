"""The first half of the demo: the broker, its clients, and the quotas that are set half-way."""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from tidegate.cli.demonstration.broker import running_broker, set_client_quotas
from tidegate.cli.demonstration.client_processes import ClientProcesses
from tidegate.cli.demonstration.clients import BULK_PARTITIONS, BULK_TOPIC, CLIENTS, ORDERS_TOPIC
from tidegate.cli.demonstration.plans import QUOTAS, RATE_LIMITS
from tidegate.cli.demonstration.results import Results
from tidegate.cli.demonstration.tally import Tally, watch
from tidegate.errors import TidegateError

__all__ = ["CONTROL", "Traffic", "as_admin", "run_traffic"]

CONTROL = "control"
"""A second checkout, whose broker has no other client: what the machine itself does to an order meanwhile."""

_SETTLE_S = 3.0
_ADMIN_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The activity of the clients: without quotas, in the seconds after quotas were set, and under quotas."""

    before: dict[str, Tally]
    settling: dict[str, Tally]
    after: dict[str, Tally]
    after_s: float


def run_traffic(console: Console, results: Results, *, seconds: float) -> Traffic:
    """Run the clients for `seconds` without quotas and for `seconds` with. Raises `TidegateError`."""
    try:
        no_record = ("--override", "tidegate.usage.enable=false")
        with (
            running_broker(results.broker) as port,
            running_broker(results.idle_broker, *no_record) as idle_port,
        ):
            for each in (port, idle_port):
                _create_topics(each)
            traffic = _run_clients(console, port, idle_port, seconds=seconds)
            _delete_bulk(port)
        shutil.rmtree(results.idle_broker)
    except KafkaException as error:
        raise TidegateError(f"the broker refused a topic: {error}") from error
    return traffic


def _create_topics(port: int) -> None:
    topics = [NewTopic(ORDERS_TOPIC, 1, 1), NewTopic(BULK_TOPIC, BULK_PARTITIONS, 1)]
    as_admin(port, lambda admin: admin.create_topics(topics))


def _delete_bulk(port: int) -> None:
    """Delete the bulk topic to free its disk space."""
    as_admin(port, lambda admin: admin.delete_topics([BULK_TOPIC]))


def as_admin(port: int, ask: Callable[[AdminClient], Mapping[str, "Future[None]"]]) -> None:
    """Ask the broker for something and wait until it is done. Raises `KafkaException`.

    In a thread of its own: a Ctrl-C that comes while an `AdminClient` is let go of is lost in the main one.
    """

    def done() -> None:
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "client.id": "tidegate-demo",
            "log_level": 4,
        }
        admin = AdminClient(settings)  # to be held until all is answered
        for answered in ask(admin).values():
            answered.result(_ADMIN_TIMEOUT_S)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(done).result()


def _run_clients(console: Console, port: int, idle_port: int, *, seconds: float) -> Traffic:
    clients = {name: (name, f"127.0.0.1:{port}") for name in CLIENTS}
    with ClientProcesses({**clients, CONTROL: ("checkout", f"127.0.0.1:{idle_port}")}) as running:

        def show(title: str, limits: dict[str, float], span_s: float) -> None:
            watch(
                console,
                lambda: _shown(running.phase),
                title=title,
                limits=limits,
                seconds=span_s,
                check=running.check,
            )

        show(f"without quotas, {seconds:.0f} seconds", {}, seconds)
        set_client_quotas(port, QUOTAS)
        before = running.begin_phase()
        console.print("\nquotas set over the wire (AlterClientQuotas): loader 2 MiB/s, analytics 4 MiB/s\n")
        show(
            f"the first {_SETTLE_S:.0f} seconds under quotas: a new window lets a burst through",
            dict(RATE_LIMITS),
            _SETTLE_S,
        )
        settling = running.begin_phase()
        show(f"under quotas, {seconds:.0f} seconds", dict(RATE_LIMITS), seconds)
        after = running.begin_phase()
    return Traffic(before=before, settling=settling, after=after, after_s=seconds)


def _shown(phase: dict[str, Tally]) -> dict[str, Tally]:
    return {name: phase[name] for name in CLIENTS}
