"""What a byte quota lets through over whole cycles: of `tidegate serve` as much as of a real Apache Kafka.

A client that takes all it can gets ten to eleven quotas at once, then next to nothing until its burst has left the
window, then the next burst: cycles of eleven to thirteen seconds (B§1.4). Both brokers run beside each other and serve
the same clients at the same time, three each and a process for each, so that whatever slows the machine slows all of
them.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from bench.ladder.brokers import BenchBroker, machine
from tests.e2e import throttled_clients
from tests.e2e.clients.processes import processes_of
from tests.e2e.plain_client import PlainClient, produce_request
from tests.e2e.throttled_clients import Admissions, Load

pytestmark = pytest.mark.java

RUNS = 3
CYCLES = 5
SECONDS = 70.0  # five cycles, and the burst with which the sixth begins
APART_S = 0.7  # between the starts of two clients, so that bursts do not meet
BURST_S = 0.3
HALF_A_CYCLE_S = 6.0
KEYS = {"produce": "producer_byte_rate", "fetch": "consumer_byte_rate"}
VALUE_BYTES = {"produce": 26_000, "fetch": 120_000}
SHARE = {"produce": 0.259, "fetch": 1.205}
"""What one request is of a second's quota. The engine, simulated, admits as much over five cycles at these shares
whether each request takes less than a millisecond or one in thirty up to 100."""
OVERHEAD = 1.005  # of a request to the value in it
FILLED = 100  # records of a topic to fetch from


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """What a client was admitted: in its first second, and in each whole cycle. Begins in monotonic seconds."""

    bytes_per_s: float
    at_once: int
    begins: list[float]
    amounts: list[int]

    def __str__(self) -> str:
        """Return a line with the amounts in quotas."""
        lengths = ", ".join(f"{end - begin:.2f}" for begin, end in itertools.pairwise(self.begins))
        amounts = ", ".join(f"{self.quotas(amount):.2f}" for amount in self.amounts)
        return (
            f"at once {self.quotas(self.at_once):.2f} quotas; cycles of {lengths} s with {amounts} quotas:"
            f" {sum(self.amounts):,} bytes in {self.begins[-1] - self.begins[0]:.2f} s"
        )

    def quotas(self, amount: int) -> float:
        """Return by how much of a second's quota so many bytes of values were charged."""
        return amount * OVERHEAD / self.bytes_per_s


@pytest.mark.parametrize("api", KEYS)
@pytest.mark.parametrize("client", ["plain_waiting", "plain_sending_on", "kafka_python", "librdkafka"])
def test_as_much_is_admitted_as_by_kafka(
    beside_kafka: dict[str, BenchBroker], create_topic: Callable[..., str], api: str, client: str
) -> None:
    """The medians of three runs are no further apart than two runs of Kafka, to one request."""
    bytes_per_s = float(round(VALUE_BYTES[api] * OVERHEAD / SHARE[api]))
    loads = []
    for run, (name, broker) in itertools.product(range(RUNS), beside_kafka.items()):
        client_id = create_topic(broker, f"sawtooth-{api}-{client}-{run}", retention_ms="-1")
        limit_and_fill(broker, client_id, {KEYS[api]: bytes_per_s})
        load = Load(
            port=broker.port,
            client_id=client_id,
            topic=client_id,
            value_bytes=VALUE_BYTES[api],
            seconds=SECONDS,
        )
        loads.append((name, load))

    print(f"\n{api}, {client}, {bytes_per_s:,.0f} bytes/s: {machine()}")
    found: dict[str, list[Cycles]] = {name: [] for name in beside_kafka}
    for name, admissions in together(getattr(throttled_clients, f"{api}_{client}"), loads):
        found[name].append(in_cycles(admissions, bytes_per_s))
        print(f"{name:9} {found[name][-1]}")
    for cycles in itertools.chain.from_iterable(found.values()):
        assert 10 - SHARE[api] <= cycles.quotas(cycles.at_once) <= 11 + SHARE[api]
        assert len(cycles.amounts) == CYCLES
    kafka, ours = ([sum(cycles.amounts) for cycles in found[name]] for name in ("kafka", "tidegate"))
    apart = abs(statistics.median(ours) - statistics.median(kafka))
    assert apart <= max(kafka) - min(kafka) + VALUE_BYTES[api]


def limit_and_fill(broker: BenchBroker, client_id: str, quotas: dict[str, float | None]) -> None:
    """Set a client's quotas, and write what it may fetch to the topic of its name; it also warms the broker."""
    with PlainClient(broker.port, "admin") as admin:
        admin.alter_quotas({"client-id": client_id}, quotas)
        for _ in range(FILLED):
            admin.send(produce_request(client_id, bytes(VALUE_BYTES["fetch"])))
            answer = admin.receive_produce()
            assert answer.responses[0].partition_responses[0].error_code == 0


def together(
    run: Callable[[Load], Admissions], loads: list[tuple[str, Load]]
) -> list[tuple[str, Admissions]]:
    """Run all loads beside each other, begun one after the other."""
    with processes_of([run] * len(loads)) as pool:
        futures = [pool.submit(later, place * APART_S, run, load) for place, (_, load) in enumerate(loads)]
        return [(name, future.result()) for (name, _), future in zip(loads, futures, strict=True)]


def later(wait_s: float, run: Callable[[Load], Admissions], load: Load) -> Admissions:
    """Run a load after a wait."""
    time.sleep(wait_s)
    return run(load)


def in_cycles(admissions: Admissions, bytes_per_s: float) -> Cycles:
    """Return the whole cycles: each begins with two quotas and more in a moment."""
    admissions = sorted(admissions)
    begins: list[float] = []
    for place, (at, _) in enumerate(admissions):
        if not begins or at >= begins[-1] + HALF_A_CYCLE_S:
            burst = (size for later, size in admissions[place:] if later < at + BURST_S)
            if sum(burst) >= 2 * bytes_per_s:
                begins.append(at)
    del begins[CYCLES + 1 :]
    return Cycles(
        bytes_per_s=bytes_per_s,
        at_once=sum(size for at, size in admissions if at < admissions[0][0] + 1),
        begins=begins,
        amounts=[
            sum(size for at, size in admissions if begin <= at < end)
            for begin, end in itertools.pairwise(begins)
        ],
    )
