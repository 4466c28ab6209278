"""Time one decision: record, verdict and throttle time through `ClientQuotaManager.record`.

For one hot client and for 10,000 clients in random order, at each of the eight levels, next to a straightforward
port of Kafka's manager (`tests/oracles`), which resolves every request anew and goes through all samples.
Nanoseconds of CPU time, the best of several runs, without the loop around the calls. Time passes at one
millisecond per 1,000 decisions, as it would in a busy broker; "every sample" is one decision per window and
client, the dearest case, as each begins a new sample.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.oracles.quota_manager import PortedManager

from tidegate.quota import DEFAULT, ClientQuotaManager, QuotaEntity, QuotaType

CLIENTS = 10_000
BYTES = 1000.0
START_MS = 1_700_000_000_000
GENEROUS, TIGHT = 1e12, 1.0

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


def time_ns(record: Record, calls: list[Client], *, per_ms: int, runs: int) -> float:
    """Return the ns of one call of `record`, without the loop around it."""
    best = [float("inf"), float("inf")]
    now_ms = START_MS
    for _ in range(runs):
        for which, function in enumerate((record, None)):
            begin_ns = time.process_time_ns()
            _loop(function, calls, now_ms, per_ms)
            best[which] = min(best[which], (time.process_time_ns() - begin_ns) / len(calls))
        now_ms += len(calls) // per_ms if per_ms else 1001 * (len(calls) // CLIENTS or 1)
    return best[0] - best[1]


def _loop(record: Record | None, calls: list[Client], now_ms: int, per_ms: int) -> None:
    """Call `record` for each client, or only do what is done around the calls."""
    for at, (user, client_id) in enumerate(calls):
        time_ms = now_ms + at // per_ms
        if record is not None:
            record(user, client_id, BYTES, time_ms)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=60_000, help="decisions per run (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=5, help="runs, of which the best counts (default: %(default)s)"
    )
    arguments = parser.parse_args()
    shuffled = random.Random(1)
    clients = [(f"user-{n}", f"client-{n}") for n in range(CLIENTS)]
    many = [
        client
        for _ in range(max(1, arguments.calls // CLIENTS))
        for client in shuffled.sample(clients, CLIENTS)
    ]
    hot = [clients[0]] * arguments.calls

    print(f"{'ns a decision':<30}{'hot':>7}{'port':>8}{'ratio':>7}{'10,000':>9}{'port':>8}{'ratio':>7}")
    cases = [("none defined", [], GENEROUS, 1000)]
    cases += [(level, entities, GENEROUS, 1000) for level, entities in levels(clients).items()]
    cases += [("(user), over its quota", levels(clients)["(user)"], TIGHT, 1000)]
    cases += [("(user), over, fractions", levels(clients)["(user)"], TIGHT + 0.1, 1000)]
    for name, entities, bound, per_ms in cases:
        cells = []
        for calls in (hot, many):
            engine, port = _managers(entities, bound)
            ours = time_ns(engine.record, calls, per_ms=per_ms, runs=arguments.runs)
            theirs = time_ns(port.record, calls, per_ms=per_ms, runs=2)
            cells.append(f"{ours:>7.0f}{theirs:>8.0f}{ours / theirs:>7.2f}")
        print(f"{name:<30}{cells[0]}  {cells[1]}")


def _managers(entities: list[QuotaEntity], bound: float) -> tuple[ClientQuotaManager, PortedManager]:
    engine = ClientQuotaManager(QuotaType.PRODUCE)
    port = PortedManager(samples=engine.window.samples, window_ms=engine.window.window_ms)
    for entity in entities:
        engine.update_quota(entity, bound)
        port.update_quota(entity, bound)
    return engine, port


if __name__ == "__main__":
    main()
