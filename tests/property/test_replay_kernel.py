"""The replay kernel against the front and the live engine: the same decision for every row of any log."""

from collections import Counter
from random import Random

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.replaying.kernel import Replayed, differences, replay_events
from tests.replaying.logs import CLIENTS, START_MS, random_records, random_traffic, random_window
from tests.replaying.node import RecordingNode

from tidegate.config.windows import Windows
from tidegate.pipeline.layout import BYTE_REASON, REQUEST_REASON
from tidegate.pipeline.replay.kernel.open_loop import replay, replay_kernel
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.quota import QuotaType
from tidegate.quota.measure.bucket_kernel import bucket_peek
from tidegate.quota.measure.rate_kernel import rate_peek
from tidegate.usage.texts import BEGINS, rows_between

_SEEDS = st.integers(0, 2**32 - 1)
_LONG = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_EVENTS = 400


def _ask_of_all(node: RecordingNode, now_ms: int) -> None:
    """Have every client charged under every quota: then each has its sensors, swept before or not."""
    for user, client_id in CLIENTS:
        node.produce(user, client_id, 1, now_ms)
        node.fetch(user, client_id, 1, now_ms)
        node.mutate(user, client_id, 1, now_ms, connection_id=1000)
        node.other(user, client_id, now_ms, connection_id=1000, api_key=19)


def _other_sensors(replayed: Replayed, node: RecordingNode, now_ms: int) -> list[tuple[object, ...]]:
    """Return every sensor that measures another value in the replay than in the engine."""
    found: list[tuple[object, ...]] = []
    for manager in node.managers:
        measured = bucket_peek if manager.quota_type is QuotaType.CONTROLLER_MUTATION else rate_peek
        for client in CLIENTS if manager.enabled else ():
            value, expected = (
                measured(*replayed.sensors[manager.quota_type, *client], now_ms),
                manager.peek(*client, now_ms),
            )
            if value != expected:
                found.append((manager.quota_type, client, value, expected))
    return found


@_LONG
@given(_SEEDS, st.integers(1, 50))
def test_quotas_in_force_decide_again_as_recorded(seed, batch_rows):
    """Following the recorded quota rows gives every throttle time and refusal of the front again, and its sensors."""
    rng = Random(seed)
    node = RecordingNode()
    node.start(
        START_MS,
        window=random_window(rng),
        controller_window=random_window(rng),
        records=random_records(rng, at_most=8),
    )
    now_ms = random_traffic(node, rng, events=_EVENTS)
    _ask_of_all(node, now_ms)
    replayed = replay_events(node.events, in_force_plan(), batch_rows=batch_rows)
    assert differences(replayed, replayed.events) == []
    assert sum(result["different_decisions"] for result in replayed.results) == 0
    assert _other_sensors(replayed, node, now_ms + 10) == []


@_LONG
@given(_SEEDS)
def test_a_plan_decides_as_an_engine_with_its_quotas(seed):
    """Rows recorded without quotas, replayed against a plan, are decided as by an engine that had the plan's."""
    rng = Random(seed)
    window, controller_window = random_window(rng), random_window(rng)
    records = random_records(rng, at_most=8)
    free, limited = RecordingNode(), RecordingNode(fetches_are_capped=True)
    free.start(START_MS)
    limited.start(START_MS, window=window, controller_window=controller_window, records=records)
    for node in (free, limited):
        random_traffic(node, Random(seed + 1), events=_EVENTS, quotas_change=False)
    plan = Plan(name="p", records=records, windows=Windows(rate=window, mutation=controller_window))
    replayed = replay_events(free.events, plan)
    decided = [event for event in limited.events if event["kind"] in {"request", "network", "mutation"}]
    assert differences(replayed, decided) == []


@_LONG
@given(_SEEDS, st.integers(1, 50))
@example(602469, 1)  # rows before all quotas are stated are charged to a sensor that comes later
def test_a_replay_that_begins_anywhere_is_exact_from_the_first_snapshot_on(seed, batch_rows):
    """What it counts is decided as recorded; after a complete snapshot it counts all. Requests come in between.

    But for a sensor of fetches that was stated before the request time of a client that came meanwhile was known.
    """
    rng = Random(seed)
    node = RecordingNode()
    windows = {"window": random_window(rng), "controller_window": random_window(rng)}
    node.start(START_MS, **windows, records=random_records(rng, at_most=8))
    now_ms = random_traffic(node, rng, events=_EVENTS // 2, snapshots=True)
    node.snapshot(now_ms)
    random_traffic(node, rng, events=_EVENTS // 2, snapshots=True, now_ms=now_ms)
    ends = [
        place for place, event in enumerate(node.events) if rows_between(event["snapshot"] or "") is not None
    ]
    begins = [place for place, event in enumerate(node.events[: ends[-1]]) if event["snapshot"] == BEGINS]
    cut = rng.choice([rng.choice(begins), rng.randrange(begins[-1] + 1)])
    replayed = replay_events(node.events[cut:], in_force_plan(), batch_rows=batch_rows)
    counted = (replayed.decisions[:, BYTE_REASON] == 0) & (replayed.decisions[:, REQUEST_REASON] == 0)
    other = [event for event, _ in differences(replayed, replayed.events)]
    wrong = [
        event
        for event, is_counted in zip(replayed.events, counted, strict=True)
        if is_counted and event in other
    ]
    assert wrong == []
    assert sum(result["different_decisions"] for result in replayed.results) == 0
    end = node.events[ends[-1]]["seq"]
    uncounted = [event for event, is_counted in zip(replayed.events, counted, strict=True) if not is_counted]
    assert [event for event in uncounted if event["seq"] > end and event["fetch_bytes"] is None] == []


def test_the_random_logs_have_every_kind_of_decision():
    """What the properties above are tried on holds throttles of all four quotas, refusals and capped fetches."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        rng = Random(seed)
        node = RecordingNode()
        node.start(START_MS, records=random_records(rng, at_most=8))
        random_traffic(node, rng, events=_EVENTS)
        for event in node.events:
            seen[event["kind"]] += 1
            seen["rejected"] += event["rejected"]
            for name in (
                "produce_throttle_ms",
                "fetch_throttle_ms",
                "request_throttle_ms",
                "mutation_throttle_ms",
            ):
                seen[name] += event[name] > 0
                seen[f"{name} below 0"] += event[name] < 0
    rare = {name: seen[name] for name in _EXPECTED if seen[name] < 20}
    assert rare == {}


_EXPECTED = (
    "start", "quota", "expire", "mutation", "request", "network", "rejected", "produce_throttle_ms",
    "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms", "produce_throttle_ms below 0",
)  # fmt: skip


def test_the_kernel_is_compiled():
    """What the properties are tried on is machine code, as on Spark, not the Python functions."""
    assert replay_kernel() is not replay
    assert hasattr(replay_kernel(), "signatures")
