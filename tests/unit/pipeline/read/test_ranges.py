"""Ranges of time: parts of a record add up to all of it, and a replay in the middle knows the state before."""

from collections import Counter
from itertools import pairwise
from random import Random

import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records
from tests.replaying.node import RecordingNode

from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.limits import Tolerance, levels_of
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.quota import QuotaRecord

_KEYS = ("plan", "quota_type", "entity_user", "entity_client_id")
_SUMS = (
    "requests",
    "amount",
    "throttled_requests",
    "throttle_ms",
    "delayed_amount",
    "rejected_mutations",
    "recorded_throttled_requests",
    "recorded_throttle_ms",
    "different_decisions",
    "approximate_requests",
)
_PLAN = tuple(
    QuotaRecord(entity=(("user", None),), key=key, value=60_000.0)
    for key in ("producer_byte_rate", "consumer_byte_rate")
)
_DECIDED = ["plan", "node_id", "seq", "ts", "throttle_ms", "request_throttle_ms"]


def _record(directory):
    """Write a record within one hour; return the times of its rows."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    times = []
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=6))
        now_ms = START_MS
        for _ in range(800):
            now_ms += rng.randrange(3000)
            user, client_id = rng.choice(["alice", "bob", "carol"]), rng.choice(["a", "b"])
            match rng.randrange(40):
                case 0:
                    value = float(rng.randrange(1, 200_000))
                    node.quota(
                        QuotaRecord(entity=(("user", user),), key="producer_byte_rate", value=value), now_ms
                    )
                case 1:
                    node.expire(now_ms)
                case step if step < 20:
                    node.produce(
                        user, client_id, rng.randrange(1_000_000), now_ms, handler_ns=rng.randrange(10**9)
                    )
                case _:
                    node.fetch(user, client_id, rng.randrange(1_000_000), now_ms)
        write_events(directory, node.events, rows_per_file=130)
        times += [event["ts_ms"] for event in node.events]
    return sorted(times)


def _sums(rows):
    found = Counter()
    for row in rows:
        for name in _SUMS:
            found[(*(row[key] for key in _KEYS), name)] += row[name]
    return +found


def _ranges(times):
    """Return cuts of the record in three, none on the first or last row."""
    third = len(times) // 3
    cuts = (None, times[third], times[2 * third] + 1, None)
    return list(pairwise(cuts))


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
def test_parts_of_a_replay_add_up_to_all_of_it(tmp_path, is_closed):
    """Decide each row as in one replay, count it once, and leave out every row outside the range."""
    times = _record(tmp_path)
    plans = [Plan(name="a", records=_PLAN, is_closed=is_closed)]
    plans.append(in_force_plan())
    with open_usage(tmp_path) as files:
        whole = jobs_here(files).replay(plans, out=None).entities
        rows = files.rows
    found = Counter()
    rows_of_parts = 0
    for from_ms, to_ms in _ranges(times):
        with open_usage(tmp_path, from_ms=from_ms, to_ms=to_ms) as files:
            part = jobs_here(files).replay(plans, out=None).entities
            found += _sums(part)
            rows_of_parts += files.rows
            assert files.rows == sum((from_ms or 0) <= time < (to_ms or 2**62) for time in times)
    assert rows_of_parts == rows
    assert sum(row["throttled_requests"] for row in whole) > 0
    # In a forecast, a request that waits at the end of a part never meets the rows after it.
    for key, value in _sums(whole).items():
        if key[0] != "a" or not is_closed or key[-1].startswith("recorded_"):
            assert found[key] == value, key


def test_decisions_of_a_range_are_those_of_the_record(tmp_path):
    """Write the decisions of the range alone, each as in a replay of the record."""
    times = _record(tmp_path / "usage")
    plan = Plan(name="a", records=_PLAN)
    from_ms, to_ms = _ranges(times)[1]
    tables = {}
    for name, ends in (("all", {}), ("part", {"from_ms": from_ms, "to_ms": to_ms})):
        with open_usage(tmp_path / "usage", **ends) as files:
            jobs_here(files).replay([plan], out=tmp_path / name, with_decisions=True)
        tables[name] = pq.read_table(tmp_path / name / "decisions").select(_DECIDED).to_pylist()
    expected = [row for row in tables["all"] if from_ms <= row["ts"].timestamp() * 1000 < to_ms]
    assert sorted(map(repr, tables["part"])) == sorted(map(repr, expected))
    assert any(row["throttle_ms"] for row in expected)


def test_usage_and_obedience_of_parts_add_up(tmp_path):
    """Count each row in exactly one part, whatever file it is in."""
    times = _record(tmp_path)

    def counted(**ends):
        with open_usage(tmp_path, **ends) as files:
            jobs = jobs_here(files)
            usage = jobs.usage(out=None, top=1000).top
            obeyed = jobs.obedience(out=None).libraries
        names = ("requests", "produce_bytes", "fetch_bytes", "mutations")
        found = Counter({name: sum(row[name] for row in usage) for name in names})
        return found + Counter(obeyed=sum(row["requests"] for row in obeyed))

    parts = sum((counted(from_ms=first, to_ms=end) for first, end in _ranges(times)), Counter())
    assert parts == counted()


def test_limits_of_a_range_are_of_its_rows(tmp_path):
    """Measure the peaks of the range alone."""
    node = RecordingNode()
    node.start(START_MS)
    for second in range(1200):
        node.produce("alice", "app", 50_000 if second < 600 else 1000, START_MS + second * 1000)
    write_events(tmp_path, node.events)
    peaks = []
    for from_ms in (None, START_MS + 900_000):
        with open_usage(tmp_path, from_ms=from_ms) as files:
            rows = jobs_here(files).limits(levels_of("user"), Tolerance(), out=None).entities
            peaks.append(next(row for row in rows if row["quota_type"] == "Produce")["never_throttled"])
    assert peaks[0] > 40_000
    assert peaks[1] < 2000
