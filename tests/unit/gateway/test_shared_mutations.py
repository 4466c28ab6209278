"""Mutation quotas that gateways share, on a virtual clock: the error against one bucket, bounds, lying writers."""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count

import pytest

from tidegate.api_keys import CREATE_TOPICS
from tidegate.gateway.shared_mutations import SharedMutations
from tidegate.gateway.shared_states import SharedBuckets
from tidegate.gateway.sharing import LOST_AFTER_MS, MAX_PROCESSES, TICK_MS
from tidegate.gateway.usage_report import MAX_FOLLOWED, Charges, UsageReport, decode_report, encode_report
from tidegate.in_slices import run_at_once
from tidegate.quota import UNLIMITED, QuotaEntity, QuotaManagers, QuotaRecord, QuotaType
from tidegate.quota.managers.client_quota import cluster_key
from tidegate.quota.managers.mutation import LONGEST_DEBT_S, STRICT_SINCE

START_MS = 1_700_000_000_000
RATE, BURST = 10.0, 110.0
STRICT = STRICT_SINCE[CREATE_TOPICS]
SLOWEST_MS = 120
KEY = cluster_key(QuotaType.CONTROLLER_MUTATION, {"user": "alice", "client-id": ""})


class Gateway:
    """A gateway with a mutation quota of `RATE` for each user."""

    def __init__(self, name: str, *, rate: float = RATE, gateway: str = "") -> None:
        self.managers = QuotaManagers()
        self.managers.apply(
            QuotaRecord(entity=(("user", None),), key=QuotaType.CONTROLLER_MUTATION.key, value=rate)
        )
        self.name = name
        self.number = 0
        self.shared = SharedMutations(name, gateway=gateway)
        self.shared.add_node(self.managers)

    def create(
        self, permits: float, now_ms: int, *, user: str = "alice", version: int = STRICT
    ) -> tuple[bool, int]:
        """Ask for permits; return whether they are admitted, and the throttle time in ms."""
        quota = self.managers.controller_mutation.new_quota(user, "", CREATE_TOPICS, version, now_ms)
        return quota.record(permits, now_ms), quota.throttle_time_ms(now_ms)

    def tokens(self, now_ms: int, user: str = "alice") -> float:
        """Return the tokens of a user."""
        return self.managers.controller_mutation.peek(user, "", now_ms)

    def report(self, now_ms: int) -> UsageReport:
        """Return the next report, as it is read from the topic."""
        self.number += 1
        mutations = run_at_once(self.shared.counts_in_slices(self.number, now_ms))
        report = UsageReport(
            process=self.name,
            nodes=1,
            usage={},
            number=self.number,
            gateway=self.shared.gateway,
            mutations=mutations,
        )
        decoded = decode_report(encode_report(report))
        assert decoded is not None
        return decoded

    def gauge(self, name: str) -> float:
        """Return a metric."""
        wanted = f"tidegate_cluster_quota_mutation_{name}"
        return next(value for gauge, value, _ in self.shared.gauges() if gauge == wanted)


class Topic:
    """The topic of reports: gives each record its offset."""

    def __init__(self) -> None:
        self._offsets = count()

    def pass_on(self, report: UsageReport, gateways: Sequence[Gateway], now_ms: int) -> None:
        """Deliver a report to gateways."""
        offset = next(self._offsets)
        for gateway in gateways:
            run_at_once(gateway.shared.receive_in_slices(report, now_ms, offset=offset))

    def exchange(self, gateways: Sequence[Gateway], now_ms: int) -> None:
        """Publish the report of each gateway, and let all gateways read it."""
        for gateway in gateways:
            self.pass_on(gateway.report(now_ms), gateways, now_ms)


@dataclass(slots=True)
class Run:
    """Clients that ask for permits at gateways, which publish every `TICK_MS`; all on one clock."""

    gateways: Sequence[Gateway]
    seed: int
    admitted: list[tuple[int, float]] = field(default_factory=list)
    topic: Topic = field(default_factory=Topic)
    events: list[tuple[int, int, Callable[[int], None]]] = field(default_factory=list)
    order: "count[int]" = field(default_factory=count)

    def at(self, at_ms: int, event: Callable[[int], None]) -> None:
        """Schedule an event for a time."""
        heapq.heappush(self.events, (at_ms, next(self.order), event))

    def go(self, clients: Sequence["Client"], seconds: int) -> float:
        """Run the clients for a time; return the permits that were admitted."""
        rng = random.Random(self.seed)

        def tick(gateway: Gateway, now: int) -> None:
            report = gateway.report(START_MS + now)
            way_ms = rng.randrange(SLOWEST_MS // 4, SLOWEST_MS)
            self.at(now + way_ms, lambda at: self.topic.pass_on(report, self.gateways, START_MS + at))
            self.at(now + TICK_MS, lambda at: tick(gateway, at))

        def ask(client: "Client", now: int) -> None:
            place = client.place(now)
            throttle_ms = 0
            if place is not None:
                gateway = self.gateways[place % len(self.gateways)]
                is_admitted, throttle_ms = gateway.create(
                    client.permits, START_MS + now, version=client.version
                )
                if is_admitted:
                    self.admitted.append((now, client.permits))
            self.at(now + max(client.every_ms, throttle_ms), lambda at: ask(client, at))

        for gateway in self.gateways:
            self.at(rng.randrange(TICK_MS), lambda now, each=gateway: tick(each, now))
        phases = random.Random(self.seed + 1)
        for client in clients:
            self.at(2 * TICK_MS + phases.randrange(client.every_ms), lambda now, each=client: ask(each, now))
        while self.events[0][0] < seconds * 1000:
            now, _, event = heapq.heappop(self.events)
            event(now)
        return sum(permits for _, permits in self.admitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client that asks for permits again after its throttle time. place: its gateway at a time; None: none."""

    permits: float
    place: Callable[[int], int | None]
    every_ms: int = 100
    version: int = STRICT


def clients(number: int, permits: float, place: Callable[[int, int], int | None]) -> list[Client]:
    """Return clients. place: of a client's number and the time."""
    return [Client(permits=permits, place=lambda at, each=each: place(each, at)) for each in range(number)]


LOADS: dict[str, Sequence[Client]] = {
    "even": clients(3, 5.0, lambda each, at: each),
    "all at one gateway": clients(3, 5.0, lambda each, at: 0),
    "all move every 7 s": clients(4, 5.0, lambda each, at: at // 7000),
    "each moves every 2 s": clients(6, 2.0, lambda each, at: at // 2000 + each),
    "skewed, and moves": clients(8, 3.0, lambda each, at: each * each if at // 13_000 % 2 else 0),
    "on and off": clients(9, 5.0, lambda each, at: each if at // 20_000 % 2 else None),
    "large requests": clients(3, 60.0, lambda each, at: each),
}


def most_within(admitted: Sequence[tuple[int, float]], span_ms: int) -> float:
    """Return the most permits that were admitted in a time of this length."""
    most, begin, total = 0.0, 0, 0.0
    for at, permits in admitted:
        total += permits
        while admitted[begin][0] < at - span_ms:
            total -= admitted[begin][1]
            begin += 1
        most = max(most, total)
    return most


@pytest.mark.parametrize("name", LOADS)
def test_error_bound(name: str) -> None:
    """Three gateways admit what one bucket does, and at most what is admitted while a report is under way."""
    seed = random.Random().randrange(2**32)
    print(f"seed {seed}")
    seconds = 180
    load = LOADS[name]
    shared = Run([Gateway(f"g{number}") for number in range(3)], seed)
    total = shared.go(load, seconds)
    one = Run([Gateway("one")], seed).go(load, seconds)
    largest = max(client.permits for client in load)
    error = most_within(shared.admitted, TICK_MS + SLOWEST_MS)
    print(f"admitted {total:.0f}, one bucket {one:.0f}: {total / one:.3f}; bound of the error {error:.0f}")
    sums = accumulate(permits for _, permits in shared.admitted)
    for (at, _), admitted in zip(shared.admitted, sums, strict=True):
        assert admitted <= BURST + RATE * at / 1000 + largest + error
    assert 0.97 * one <= total <= one + largest + error


def test_a_gateway_alone_decides_as_kafka() -> None:
    """Tokens, refusals and throttle times are those of one bucket, to the last bit."""
    seed = random.Random().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    alone, plain = Gateway("alone", rate=3.7), Gateway("plain", rate=3.7)
    plain.managers.controller_mutation.follow = None
    topic, now_ms = Topic(), START_MS
    for _ in range(2000):
        now_ms += rng.choice((0, 1, 130, 900, 20_000))
        permits, version = rng.randrange(1, 60), rng.choice((STRICT, STRICT - 1))
        decided = [each.create(permits, now_ms, version=version) for each in (alone, plain)]
        assert decided[0] == decided[1]
        assert alone.tokens(now_ms) == plain.tokens(now_ms)
        topic.exchange([alone], now_ms)


def test_all_buckets_owe_what_all_gateways_have_admitted() -> None:
    """Three gateways that each admit a request at once have the tokens of one bucket after their reports."""
    gateways, topic = [Gateway(f"g{number}") for number in range(3)], Topic()
    topic.exchange(gateways, START_MS)
    for gateway, permits in zip(gateways, (100.0, 70.0, 30.0), strict=True):
        assert gateway.create(permits, START_MS)[0]
    topic.exchange(gateways, START_MS + TICK_MS)
    owed = 200.0 - BURST - RATE * TICK_MS / 1000
    for gateway in gateways:
        assert gateway.tokens(START_MS + TICK_MS) == pytest.approx(-owed)
        is_admitted, throttle_ms = gateway.create(1.0, START_MS + TICK_MS)
        assert not is_admitted
        assert throttle_ms == pytest.approx(owed / RATE * 1000, abs=1)


@pytest.mark.parametrize("has_stopped", [False, True])
def test_a_bucket_begins_with_the_tokens_at_the_other_gateways(has_stopped: bool) -> None:
    """A client that moves to a gateway that does not know it yet takes its debt along, also if the first has ended."""
    first, second = gateways = [Gateway("first"), Gateway("second")]
    topic = Topic()
    topic.exchange(gateways, START_MS)
    first.create(400.0, START_MS)
    last = first.report(START_MS)
    topic.pass_on(replace(last, nodes=0) if has_stopped else last, gateways, START_MS)
    now_ms = START_MS + 20_000
    assert second.create(1.0, now_ms) == (False, round((400.0 - BURST) / RATE * 1000) - 20_000)


def test_a_gateway_that_starts_has_the_tokens_of_the_others() -> None:
    """Its first use of a bucket is charged with what was admitted before it started."""
    first, late = Gateway("first"), Gateway("late")
    topic = Topic()
    topic.exchange([first], START_MS)
    first.create(200.0, START_MS)
    topic.exchange([first], START_MS)
    topic.exchange([first, late], START_MS + TICK_MS)
    assert not late.create(1.0, START_MS + TICK_MS)[0]
    assert late.tokens(START_MS + TICK_MS) == pytest.approx(first.tokens(START_MS + TICK_MS), abs=0.01)


def test_gateways_that_were_cut_off_pay_once() -> None:
    """Meanwhile each has its own limit. Then they go on with the fewest tokens, not with the debt of both."""
    gateways, topic = [Gateway("a"), Gateway("b")], Topic()
    topic.exchange(gateways, START_MS)
    now_ms = START_MS
    for _ in range(100):
        now_ms += 1000
        for gateway in gateways:
            while gateway.create(5.0, now_ms)[0]:
                pass
            gateway.report(now_ms)  # is not delivered
    lowest = min(gateway.tokens(now_ms) for gateway in gateways)
    assert lowest >= -5.0
    topic.exchange(gateways, now_ms)
    for gateway in gateways:
        assert gateway.tokens(now_ms) == pytest.approx(lowest, abs=0.01)
    assert gateways[0].create(5.0, now_ms + 2000)[0]
    topic.exchange(gateways, now_ms + 2000)
    assert gateways[1].tokens(now_ms + 2000) == pytest.approx(gateways[0].tokens(now_ms + 2000), abs=0.01)


def test_a_report_that_was_not_sent_loses_no_permits() -> None:
    """Counts go on; a bucket that was out of use meanwhile counts anew, which the others notice."""
    first, second = gateways = [Gateway("first"), Gateway("second")]
    topic = Topic()
    now_ms = START_MS
    topic.exchange(gateways, now_ms)
    for gateway in gateways:
        gateway.create(20.0, now_ms)
    topic.exchange(gateways, now_ms)
    first.create(30.0, now_ms)
    first.report(now_ms)  # is not sent
    first.create(40.0, now_ms)
    topic.exchange(gateways, now_ms)
    assert second.tokens(now_ms) == pytest.approx(BURST - 20.0 - 20.0 - 70.0)
    for step in range(1, 60):  # both buckets are full, and out of use
        topic.exchange(gateways, now_ms + step * TICK_MS)
    assert first.gauge("buckets") == second.gauge("buckets") == 0
    now_ms += 60 * TICK_MS
    second.create(1.0, now_ms)
    first.create(100.0, now_ms)
    topic.exchange(gateways, now_ms)
    assert second.tokens(now_ms) == pytest.approx(BURST - 101.0)


@pytest.mark.parametrize(
    "charges",
    [
        Charges(permits=UNLIMITED, tokens=-UNLIMITED, since=1),
        Charges(permits=0.0, tokens=UNLIMITED, since=1),
        Charges(permits=UNLIMITED, tokens=0.0, since=10**9),
        Charges(permits=UNLIMITED, tokens=0.0, since=-(10**9)),
    ],
)
def test_a_lying_writer_costs_an_hour_at_most(charges: Charges) -> None:
    """Whatever it reports, and however often: a debt of an hour, and no tokens are given."""
    gateway, topic = Gateway("g"), Topic()
    gateway.create(20.0, START_MS)
    for number in range(200):
        report = UsageReport(
            process=f"liar {number % 90}", nodes=1, usage={}, number=number, mutations={KEY: charges}
        )
        topic.pass_on(report, [gateway], START_MS)
        topic.pass_on(replace(report, mutations={}), [gateway], START_MS)
        topic.pass_on(replace(report, mutations={KEY: replace_permits(charges)}), [gateway], START_MS)
        assert -LONGEST_DEBT_S * RATE <= gateway.tokens(START_MS) <= BURST - 20.0
    _, throttle_ms = gateway.create(1.0, START_MS)
    assert throttle_ms <= LONGEST_DEBT_S * 1000
    assert gateway.create(1.0, START_MS + LONGEST_DEBT_S * 1000)[0]
    assert len(gateway.shared._others) < MAX_PROCESSES


def replace_permits(charges: Charges) -> Charges:
    """Return other charges: half of the permits."""
    return charges._replace(permits=charges.permits / 2)


def test_a_count_that_goes_back_gives_no_tokens() -> None:
    """Another process with the same name, or a writer that lies."""
    gateway, topic = Gateway("g"), Topic()
    gateway.create(50.0, START_MS)
    for permits in (80.0, 20.0, 30.0):
        mutations = {KEY: Charges(permits=permits, tokens=BURST, since=0)}
        topic.pass_on(UsageReport(process="p", nodes=1, usage={}, mutations=mutations), [gateway], START_MS)
    assert gateway.tokens(START_MS) == BURST - 50.0 - 10.0


def test_the_first_mutations_of_another_gateway_are_noted() -> None:
    """Once, for the usage record; as often as needed until it is recorded. Those of the own gateway are not."""
    calls: list[bool] = []

    def note() -> bool:
        calls.append(len(calls) > 0)
        return calls[-1]

    shared = SharedMutations("p", gateway="own", on_shared=note)
    mutations = {KEY: Charges(permits=1.0, tokens=0.0, since=0)}
    for gateway, charges in (("own", mutations), ("", {}), *[("", mutations)] * 4):
        report = UsageReport(process="other", nodes=1, usage={}, gateway=gateway, mutations=charges)
        run_at_once(shared.receive_in_slices(report, START_MS, offset=1))
    assert calls == [False, True]


def test_many_buckets_of_a_user_leave_room_for_another() -> None:
    """The table is divided between users; what finds no room is charged by its own gateway alone."""
    gateway = Gateway("g")
    key = QuotaType.CONTROLLER_MUTATION.key
    both = (("client-id", None), ("user", None))
    gateway.managers.apply(QuotaRecord(entity=both, key=key, value=RATE))
    manager = gateway.managers.controller_mutation
    for number in range(MAX_FOLLOWED + 500):
        assert manager.new_quota("alice", f"c{number}", CREATE_TOPICS, STRICT, START_MS).record(1.0, START_MS)
    manager.new_quota("bob", "c", CREATE_TOPICS, STRICT, START_MS).record(1.0, START_MS)
    mutations = gateway.report(START_MS).mutations
    assert cluster_key(QuotaType.CONTROLLER_MUTATION, {"user": "bob", "client-id": "c"}) in mutations
    assert len(mutations) == MAX_FOLLOWED == gateway.gauge("buckets")
    assert gateway.gauge("buckets_omitted") == 500


def test_bucket_is_shared_unless_it_has_no_place() -> None:
    """One that is full and idle has no place in the reports, and is shared from its next use on."""
    gateway = Gateway("a")
    manager = gateway.managers.controller_mutation
    users = [f"user{number}" for number in range(MAX_FOLLOWED + 1)]
    for user in users:
        gateway.create(10.0, START_MS, user=user)

    def shared(now_ms: int) -> int:
        sensors = [manager.existing_sensor(user, "") for user in users]
        return sum(sensor is not None and sensor.is_shared(now_ms) for sensor in sensors)

    assert shared(START_MS) == MAX_FOLLOWED
    full_ms = START_MS + LOST_AFTER_MS + 1_000
    assert len(gateway.report(START_MS).mutations) == MAX_FOLLOWED
    assert not gateway.report(full_ms).mutations
    assert shared(full_ms) == MAX_FOLLOWED + 1
    alone = QuotaManagers().controller_mutation
    alone.update_quota(QuotaEntity(user="alice"), RATE)
    alone.new_quota("alice", "", CREATE_TOPICS, STRICT, START_MS).record(1.0, START_MS)
    sensor = alone.existing_sensor("alice", "")
    assert sensor is not None
    assert not sensor.is_shared(full_ms)


def test_processes_of_one_gateway_charge_once_for_another() -> None:
    """They have one bucket in memory, which each of them may lower; a topic that was deleted begins at offset 0."""
    now = [START_MS]
    table = SharedBuckets()
    own = [Gateway(f"p{number}", gateway="own") for number in (1, 2)]
    for process in own:
        process.managers.controller_mutation.new_bucket = table.buckets(lambda: now[0])
    other, topic = Gateway("other"), Topic()
    everyone = [*own, other]
    topic.exchange(everyone, now[0])
    for process in own:
        process.create(10.0, now[0])
    other.create(40.0, now[0])
    topic.exchange(everyone, now[0])
    for process in everyone:
        assert process.tokens(now[0]) == pytest.approx(BURST - 60.0)
    late = Gateway("p3", gateway="own")  # a process that was killed starts again
    late.managers.controller_mutation.new_bucket = table.buckets(lambda: now[0])
    other.create(5.0, now[0])
    topic.exchange([late, *own, other], now[0])
    late.create(1.0, now[0])
    topic.exchange([late, *own, other], now[0])
    for process in (late, *everyone):
        assert process.tokens(now[0]) == pytest.approx(BURST - 66.0, abs=0.01)
    topic = Topic()
    for _ in range(LOST_AFTER_MS // TICK_MS * 4):
        now[0] += TICK_MS
        for process in own:
            process.create(5.0, now[0], version=STRICT - 1)
        topic.exchange(everyone, now[0])
    other.create(30.0, now[0], version=STRICT - 1)
    before = own[0].tokens(now[0])
    topic.exchange(everyone, now[0])
    assert own[0].tokens(now[0]) == own[1].tokens(now[0]) == pytest.approx(before - 30.0)
