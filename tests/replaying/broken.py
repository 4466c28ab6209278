"""Records with rows missing: lost by the node, damaged in the spool, in a file that is gone, cut at the beginning."""

from collections.abc import Sequence
from random import Random
from typing import Any

from tests.replaying.node import RecordingNode

from tidegate.usage.columns import empty_event

__all__ = ["broken", "steady_traffic"]

Event = dict[str, Any]
_NAMES = ("quota_user", "quota_client_id", "quota_ip", "quota_key")


def broken(events: Sequence[Event], rng: Random) -> list[Event]:
    """Return the events of a node without some runs of them, or without the beginning."""
    kept = list(map(dict, events))
    if rng.random() < 0.4:
        kept = kept[rng.randrange(1, len(kept)) :]
    for _ in range(rng.randrange(4)):
        first = rng.randrange(1, len(kept)) if len(kept) > 1 else 0
        count = rng.choice([1, 1, 3, 20, len(kept) // 4])
        lost = kept[first : first + count]
        if first and lost:
            how = rng.choice([_noticed, _damaged, _missing])
            kept[first : first + count] = how(_up_to(events, lost[-1]), lost)
    return kept


def steady_traffic(node: RecordingNode, rng: Random, *, events: int, now_ms: int) -> int:
    """Let few clients come with hardly a pause; return the time of the last.

    Client `c0` produces and fetches 12 times a second, 1000 bytes each time, others a fifth of that.
    """
    pauses = rng.choice([0.0, 0.002, 0.02])
    for _ in range(events):
        now_ms += rng.randrange(20_000) if rng.random() < pauses else rng.randrange(60)
        client = rng.choice([0, 0, 0, 0, 0, 1, 2])
        name, size = ("alice", f"c{client}"), rng.choice([1000, rng.randrange(2000)])
        times = {"handler_ns": rng.randrange(1_500_000), "network_ns": rng.randrange(500_000)}
        match rng.choice(["produce", "produce", "fetch", "fetch", "other", "mutate", "sweep"]):
            case "produce":
                node.produce(*name, size, now_ms, **times)
            case "fetch":
                node.fetch(*name, size, now_ms, **times)
            case "other":
                node.other(*name, now_ms, **times)
            case "mutate" if rng.random() < 0.3:
                node.mutate(*name, rng.randrange(8), now_ms, strict=rng.random() < 0.5, connection_id=client)
                node.other(*name, now_ms, connection_id=client, api_key=19, **times)
            case "sweep" if rng.random() < 0.02:
                now_ms += rng.choice([0, 0, 3_600_100, 4_000_000])
                node.expire(now_ms)
    return now_ms


def _up_to(events: Sequence[Event], last: Event) -> list[Event]:
    return [event for event in events if event["seq"] <= last["seq"]]


def _noticed(before: Sequence[Event], lost: Sequence[Event]) -> list[Event]:
    """The node tells how many events it has lost, and states what is in force, if that has room: a callback first."""
    in_force: dict[tuple[Any, ...], Event] = {}
    callbacks: list[Event] = []
    for event in before:
        if event["kind"] == "start":
            in_force.clear()
            callbacks.clear()
        elif event["kind"] == "callback":
            callbacks = [event]
        elif event["kind"] == "quota":
            in_force[tuple(event[name] for name in _NAMES)] = event
    stated = callbacks + [event for event in in_force.values() if event["quota_value"] is not None]
    if len(lost) <= len(stated) or any(event["kind"] == "start" for event in lost):
        return _missing(before, lost)
    last = lost[-1]
    rows = [_gap(last, len(lost)), *(event | {"ts_ms": last["ts_ms"]} for event in stated)]
    return [row | {"seq": last["seq"] - len(rows) + 1 + place} for place, row in enumerate(rows)]


def _damaged(before: Sequence[Event], lost: Sequence[Event]) -> list[Event]:
    """A gap stands in the place of the first."""
    return [_gap(lost[0], lost[-1]["seq"] - lost[0]["seq"] + 1)]


def _missing(before: Sequence[Event], lost: Sequence[Event]) -> list[Event]:
    """Nobody tells."""
    return []


def _gap(event: Event, lost_events: int) -> Event:
    columns = {"node_id": event["node_id"], "seq": event["seq"], "ts_ms": event["ts_ms"]}
    return empty_event("gap") | columns | {"lost_events": lost_events}
