"""Random logs of a node: made from a seed, dense enough that every quota throttles now and then."""

from random import Random

from tests.replaying.node import RecordingNode

from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["CLIENTS", "START_MS", "random_records", "random_traffic", "random_window"]

START_MS = 1_700_000_000_000
_USERS = ("ANONYMOUS", "alice", "a b:c", "bob")
_CLIENT_IDS = ("", "c1", "c2", "é/*")
CLIENTS = tuple((user, client_id) for user in _USERS for client_id in _CLIENT_IDS)
_BOUNDS = {
    "producer_byte_rate": (1.0, 100.0, 2000.0, 50_000.0, 1e12, float("nan")),
    "consumer_byte_rate": (100.0, 2000.0, 50_000.0, 1e12),
    "request_percentage": (0.01, 0.5, 3.7, 200.0),
    "controller_mutation_rate": (0.5, 2.0, 30.0, 1e6),
}
_STEPS_MS = (
    lambda rng: rng.randrange(30),
    lambda rng: rng.randrange(30),
    lambda rng: rng.randrange(1500),
    lambda rng: rng.randrange(4000),
    lambda rng: -rng.randrange(2500) if rng.random() < 0.2 else 0,
    lambda rng: rng.randrange(9000, 40_000) if rng.random() < 0.2 else 1,
    lambda rng: rng.choice([3_599_000, 3_600_000, 3_600_001, 7_300_000]) if rng.random() < 0.1 else 1000,
)
_QUOTA_EVENTS = ("quota", "quota", "removal", "start")


def random_window(rng: Random) -> QuotaWindow:
    """Return Kafka's window, or another one."""
    if rng.random() < 0.5:
        return QuotaWindow()
    return QuotaWindow(samples=rng.randint(1, 12), window_ms=1000 * rng.randint(1, 3))


def random_records(rng: Random, *, at_most: int) -> tuple[QuotaRecord, ...]:
    """Return some definitions, most keys and levels among them."""
    return tuple(_record(rng) for _ in range(rng.randint(1, at_most)))


def random_traffic(
    node: RecordingNode,
    rng: Random,
    *,
    events: int,
    quotas_change: bool = True,
    snapshots: bool = False,
    now_ms: int = START_MS,
) -> int:
    """Let `events` things happen on `node`, after its start; return the time of the last.

    snapshots: begin some, and write a few steps of one at a time.
    """
    set_before: list[QuotaRecord] = []
    for _ in range(events):
        now_ms += rng.choice(_STEPS_MS)(rng)
        if rng.random() < 0.02:
            node.clock(now_ms, rng.randrange(-3_600_000, 3_600_000))
        if snapshots and rng.random() < 0.3:
            node.snapshot(now_ms, steps=rng.choice([1, 3, 20, 1000]))
        if rng.random() < 0.05:
            node.expire(now_ms)
        elif rng.random() < 0.06:
            change, record = rng.choice(_QUOTA_EVENTS), _record(rng)
            if quotas_change:
                _change_quotas(node, rng, change, record, set_before, now_ms)
        else:
            _ask(node, rng, now_ms)
    return now_ms


def _change_quotas(
    node: RecordingNode,
    rng: Random,
    change: str,
    record: QuotaRecord,
    set_before: list[QuotaRecord],
    now_ms: int,
) -> None:
    if change == "quota":
        node.quota(record, now_ms)
        set_before.append(record)
    elif change == "removal" and set_before:
        gone = set_before.pop()
        node.quota(QuotaRecord(entity=gone.entity, key=gone.key, value=None), now_ms)
    elif change == "start" and rng.random() < 0.3:
        node.start(now_ms, window=random_window(rng), records=(record, *set_before))


def _ask(node: RecordingNode, rng: Random, now_ms: int) -> None:
    user, client_id = rng.choice(_USERS), rng.choice(_CLIENT_IDS)
    size = rng.choice([rng.randrange(300), rng.randrange(20_000), rng.randrange(2_000_000), 2**31 - 1])
    times = {
        "handler_ns": rng.randrange(rng.choice([100_000, 50_000_000])),
        "network_ns": rng.randrange(2_000_000)
        if rng.random() < 0.9
        else None,  # not known, as in Kafka's request log
    }
    match rng.choice(["produce", "fetch", "fetch", "other", "mutations", "auto_create", "network"]):
        case "produce":
            exempt = rng.random() < 0.1
            close = exempt and rng.random() < 0.5
            node.produce(user, client_id, size, now_ms, exempt=exempt, close=close, **times)
        case "fetch":
            node.fetch(user, client_id, size, now_ms, **times)
        case "other":
            node.other(user, client_id, now_ms, **times)
        case "network":
            node.network(user, client_id, rng.randrange(2_000_000_000), now_ms, exempt=rng.random() < 0.1)
        case "auto_create":
            for _ in range(rng.randint(1, 3)):
                node.auto_create(user, client_id, rng.randrange(1, 300), now_ms)
            node.other(user, client_id, now_ms, **times)
        case "mutations":
            connection_id, strict = rng.randrange(100), rng.random() < 0.6
            for _ in range(rng.randint(0, 4)):
                permits = rng.randrange(rng.choice([3, 300]))
                node.mutate(user, client_id, permits, now_ms, strict=strict, connection_id=connection_id)
            after_ms = now_ms + rng.choice([0, 0, 700])
            node.other(user, client_id, after_ms, connection_id=connection_id, api_key=19, **times)


def _record(rng: Random) -> QuotaRecord:
    key = rng.choice(list(_BOUNDS))
    kinds = rng.choice([["user"], ["client-id"], ["client-id", "user"]])
    names = {"user": _USERS, "client-id": _CLIENT_IDS[1:]}
    entity = tuple((kind, None if rng.random() < 0.4 else rng.choice(names[kind])) for kind in kinds)
    return QuotaRecord(entity=entity, key=key, value=rng.choice(_BOUNDS[key]))
