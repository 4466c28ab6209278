"""Time one decision: record, verdict and throttle time through `ClientQuotaManager.record`.

For one hot client and for 10,000 clients in random order, at each of the eight levels, next to a straightforward
port of Kafka's manager (`tests/oracles`), which resolves every request anew and goes through all samples, and with a
quota callback, which is asked on every request: `LimitsByLedPartitions`, guarded as on a node, follows the same levels.
Nanoseconds of CPU time, the best of several runs in several passes over all rows (a machine that is shared with others
may be slow for half a minute), without the loop around the calls. Time passes at one
millisecond per 1,000 decisions, as it would in a busy broker; "new sample each" is one decision per client and
window: then every one of them has to look through the samples. In the last two rows all have the same user, or the
same client id.

python bench/bench_decision.py [--runs N] [--passes N]; exit 1: over 10,000 clients within their
quotas, and without a callback, a decision takes more than 800 ns
"""

import argparse
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.oracles.quota_manager import PortedManager

from tidegate.callbacks import LimitsByLedPartitions
from tidegate.quota import DEFAULT, ClientQuotaManager, QuotaEntity, QuotaType
from tidegate.server.callback.callback_guard import GuardedCallback

CLIENTS = 10_000
BYTES = 1000.0
ROUNDS = 3  # decisions per client in a run over all clients
START_MS = 1_700_000_000_000
BUSY_STEP_MS = 0.001
GENEROUS, TIGHT = 1e12, 10.0
USER, CLIENT_ID = "ANONYMOUS", "rdkafka"
MOST_NS = 800

Client = tuple[str, str]
Record = Callable[[str, str, float, int], int]


def levels(clients: list[Client]) -> dict[str, list[QuotaEntity]]:
    """Return the entities to define at each level, so that every one of `clients` has its quota from there."""
    users = [user for user, _ in clients]
    return {
        "(user, client-id)": [QuotaEntity(user=user, client_id=client_id) for user, client_id in clients],
        "(user, <default>)": [QuotaEntity(user=user, client_id=DEFAULT) for user in users],
        "(user)": [QuotaEntity(user=user) for user in users],
        "(<default>, client-id)": [
            QuotaEntity(user=DEFAULT, client_id=client_id) for _, client_id in clients
        ],
        "(<default>, <default>)": [QuotaEntity(user=DEFAULT, client_id=DEFAULT)],
        "(<default>)": [QuotaEntity(user=DEFAULT)],
        "client-id": [QuotaEntity(client_id=client_id) for _, client_id in clients],
        "<default> client-id": [QuotaEntity(client_id=DEFAULT)],
    }


def time_ns(record: Record, calls: list[Client], *, step_ms: float, runs: int) -> float:
    """Return the ns of one call of `record`, without the loop around it; `step_ms` passes between two calls."""
    best = [float("inf"), float("inf")]
    begin_ms: float = START_MS
    for _ in range(runs):
        times_ms = [int(begin_ms + at * step_ms) for at in range(len(calls))]
        for which, function in enumerate((record, None)):
            begin_ns = time.process_time_ns()
            _loop(function, calls, times_ms)
            best[which] = min(best[which], (time.process_time_ns() - begin_ns) / len(calls))
        begin_ms += len(calls) * step_ms
    return best[0] - best[1]


def _loop(record: Record | None, calls: list[Client], times_ms: list[int]) -> None:
    """Call `record` for each client, or only do what is done around the calls."""
    if record is None:
        for (_user, _client_id), _now_ms in zip(calls, times_ms, strict=True):
            pass
        return
    for (user, client_id), now_ms in zip(calls, times_ms, strict=True):
        record(user, client_id, BYTES, now_ms)


def main() -> int:
    """Print the table and judge it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15, help="runs of a row (default: %(default)s)")
    parser.add_argument(
        "--passes", type=int, default=3, help="passes over all rows, minutes apart (default: %(default)s)"
    )
    args = parser.parse_args()
    logging.getLogger("tidegate.server").setLevel(
        logging.CRITICAL
    )  # on a busy machine calls of the callback are slow
    best: dict[str, list[float]] = {}
    for number in range(args.passes):
        print(f"… pass {number + 1} of {args.passes}", file=sys.stderr)
        for name, times in _rows(args.runs):
            best[name] = list(map(min, times, best.get(name, times)))

    heads = [f"{first:>7}{'port':>7}{'ratio':>7}{'callback':>10}" for first in ("hot", "10,000")]
    print(f"{'ns a decision':<26}{heads[0]}  {heads[1]}")
    above = []
    for name, times in best.items():
        cells = [
            f"{ours:>7.0f}{theirs:>7.0f}{ours / theirs:>7.2f}{asked:>10.0f}"
            for ours, theirs, asked in (times[:3], times[3:])
        ]
        print(f"{name:<26}{cells[0]}  {cells[1]}")
        if times[3] > MOST_NS and name in levels([]):
            above.append(f"{name}: {times[3]:.0f} ns over 10,000 clients, expected at most {MOST_NS}")
    for line in above:
        print(line, file=sys.stderr)
    return int(bool(above))


def _rows(runs: int) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each row, and the ns of engine, port and followed callback, hot and over all clients."""
    shuffled = random.Random(1)
    distinct = [(f"user-{n}", f"client-{n}") for n in range(CLIENTS)]
    for name, clients, entities, bound, new_sample in _cases(distinct):
        many = [client for _ in range(ROUNDS) for client in shuffled.sample(clients, CLIENTS)]
        times = []
        for calls, rate in (([clients[0]] * len(many), 1), (many, CLIENTS)):
            step_ms = 1001 / rate if new_sample else BUSY_STEP_MS
            engine, port, followed = _managers(entities, bound)
            times.append(time_ns(engine.record, calls, step_ms=step_ms, runs=runs))
            times.append(time_ns(port.record, calls, step_ms=step_ms, runs=2))
            times.append(time_ns(followed.record, calls, step_ms=step_ms, runs=2))
        yield name, times


def _cases(clients: list[Client]) -> Iterator[tuple[str, list[Client], list[QuotaEntity], float, bool]]:
    """Yield name, clients, entities to define, bound, and whether every decision begins a new sample."""
    yield "none defined", clients, [], GENEROUS, False
    entities = levels(clients)
    for level in entities:
        yield level, clients, entities[level], GENEROUS, False
    yield "(user), over its quota", clients, entities["(user)"], TIGHT, False
    yield "(user), new sample each", clients, entities["(user)"], GENEROUS, True
    default = entities["(<default>, <default>)"]
    yield "one user", [(USER, client_id) for _, client_id in clients], default, GENEROUS, False
    yield "one client-id", [(user, CLIENT_ID) for user, _ in clients], default, GENEROUS, False


def _managers(
    entities: list[QuotaEntity], bound: float
) -> tuple[ClientQuotaManager, PortedManager, ClientQuotaManager]:
    """Return the engine, the port, and the engine with a callback, all with the same quotas."""
    engine = ClientQuotaManager(QuotaType.PRODUCE)
    callback = LimitsByLedPartitions()
    callback.configure({"node.id": 1})
    guard = GuardedCallback(callback, "LimitsByLedPartitions", time.monotonic_ns)
    followed = ClientQuotaManager(QuotaType.PRODUCE, callback=guard)
    followed.late_limits = True
    port = PortedManager(samples=engine.window.samples, window_ms=engine.window.window_ms)
    for entity in entities:
        engine.update_quota(entity, bound)
        port.update_quota(entity, bound)
        followed.update_quota(entity, bound)
    return engine, port, followed


if __name__ == "__main__":
    sys.exit(main())
