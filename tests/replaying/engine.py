"""A record replayed by the engine itself: what `Decider` and the managers decide when they are given its rows again."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from tests.replaying.node import RecordingNode

from tidegate.callbacks.own_rules import OwnRules
from tidegate.quota import QuotaType
from tidegate.quota.admin.definitions import QuotaRecord, entity_parts
from tidegate.quota.admin.keys import WINDOW_SETTINGS
from tidegate.quota.admin.sanitizer import desanitize
from tidegate.quota.managers.mutation import STRICT_SINCE
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["decisions", "replay_with_engine"]

Event = dict[str, Any]
_TYPES = {quota_type.key: quota_type for quota_type in QuotaType}
_DECIDED = (
    "produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms", "observed_only",
    "rejected",
)  # fmt: skip


def decisions(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """Return what was decided of requests and permits, in order.

    Of a request that was forwarded without what two nodes have decided of it together.
    """
    found = []
    for event in events:
        if event["kind"] in ("request", "mutation", "forwarded"):
            if event["kind"] == "forwarded":
                event = event | {"observed_only": False}
            elif event["forwarded"]:
                event = event | {"observed_only": False, "mutation_throttle_ms": 0}
            found.append(tuple(event[name] for name in ("kind", "ts_ms", *_DECIDED)))
    return found


class RecordedCallback(OwnRules):
    """Answers what the `tags` rows say."""

    def __init__(self) -> None:
        super().__init__()
        self._tags: dict[tuple[QuotaType, str, str], dict[str, str]] = {}
        self._limits: dict[tuple[QuotaType, tuple[str, ...]], float | None] = {}

    def take(self, event: Event) -> QuotaType:
        """Take a row; return the type of quota that it is of, whose limits are to be asked again."""
        quota_type, tags = _TYPES[event["quota_key"]], json.loads(event["tags"])
        self._tags[quota_type, event["user"], event["client_id"]] = tags
        self._limits[quota_type, tuple(tags.values())] = event["quota_value"]
        return quota_type

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Mapping[str, str]:
        """Return the tags that were recorded last; of whom nothing was charged they are in no row."""
        return self._tags.get((quota_type, user, client_id), {})

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """Return the limit that was recorded last."""
        return self._limits.get((quota_type, tuple(tags.values())))


def replay_with_engine(events: Sequence[Event]) -> list[Event]:
    """Return the events of a node that is asked what the recorded one was asked, in the same order."""
    node = RecordingNode()
    for number, event in enumerate(events):
        _replay(node, event, events[number + 1 :] if event["kind"] == "start" else ())
    return node.events


def _replay(node: RecordingNode, event: Event, following: Sequence[Event]) -> None:
    now_ms, kind = event["ts_ms"], event["kind"]
    client = event["user"], event["client_id"]
    times = {"handler_ns": event["handler_ns"], "network_ns": event["network_ns"]}
    if kind == "start":
        rows = takewhile(lambda row: row["quota_key"] in WINDOW_SETTINGS, following)
        set_to = {row["quota_key"]: int(row["quota_value"]) for row in rows}
        node.start(now_ms, window=_window(set_to, ""), controller_window=_window(set_to, "controller."))
    elif kind == "quota" and event["quota_key"] not in WINDOW_SETTINGS:
        node.quota(
            QuotaRecord(entity=_entity(event), key=event["quota_key"], value=event["quota_value"]), now_ms
        )
    elif kind == "callback":
        node.exchange(None if event["callback"] is None else RecordedCallback(), event["callback"], now_ms)
    elif kind == "tags":
        callback = node.managers.callback
        assert isinstance(callback, RecordedCallback)
        node.managers.manager(callback.take(event)).refresh()
    elif kind == "expire":
        node.expire(now_ms)
    elif kind == "network":
        node.network(*client, event["network_ns"], now_ms, exempt=event["exempt"])
    elif kind == "mutation" and event["api_key"] in STRICT_SINCE:
        strict = event["api_version"] >= STRICT_SINCE[event["api_key"]]
        node.mutate(*client, event["mutations"], now_ms, strict=strict, connection_id=event["connection_id"])
    elif kind == "mutation":
        node.auto_create(*client, event["mutations"], now_ms)
    elif kind == "request" and event["produce_bytes"] is not None:
        node.produce(*client, event["produce_bytes"], now_ms, exempt=event["exempt"], **times)
    elif kind == "request" and event["fetch_bytes"] is not None:
        node.fetch(*client, event["fetch_bytes"], now_ms, **times)
    elif kind == "forwarded":
        node.forwarded(*client, now_ms, connection_id=event["connection_id"], api_key=event["api_key"])
    elif kind == "request":
        node.other(
            *client, now_ms, connection_id=event["connection_id"], api_key=event["api_key"], exempt=event["exempt"],
            forwarded=event["forwarded"], **times,
        )  # fmt: skip


def _window(set_to: dict[str, int], prefix: str) -> QuotaWindow:
    name = f"{prefix}quota.window"
    return QuotaWindow(samples=set_to[f"{name}.num"], window_ms=1000 * set_to[f"{name}.size.seconds"])


def _entity(event: Event) -> tuple[tuple[str, str | None], ...]:
    names = {"user": event["quota_user"], "client-id": event["quota_client_id"], "ip": event["quota_ip"]}
    return entity_parts(
        (kind, None if name == "<default>" else desanitize(name))
        for kind, name in names.items()
        if name is not None
    )
