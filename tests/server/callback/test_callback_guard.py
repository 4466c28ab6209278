"""A custom quota callback on a running node: what it raises or makes up fails no request."""

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.nodes import RunningNode, until
from tests.server.whole_node import whole_node

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, CREATE_TOPICS, DELETE_TOPICS
from tidegate.errors import ConfigError
from tidegate.in_slices import run_at_once
from tidegate.quota import ClusterMetadata, QuotaEntity, QuotaManagers, QuotaType
from tidegate.server.callback.callback_guard import MAX_REMEMBERED, NO_TAGS, GuardedCallback, load_callback
from tidegate.wire import encode_request

PRODUCE = QuotaType.PRODUCE


class Callback:
    """Answers what it is told to; an exception is raised."""

    def __init__(self) -> None:
        self.tags: Any = {"group": "g"}
        self.limit: Any = 100.0
        self.reset: Any = False
        self.changed: Any = False
        self.told: list[Any] = []
        self.settings: Any = None

    def configure(self, config: Any) -> None:
        self.settings = config

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Any:
        return _answer(self.tags)

    def quota_limit(self, quota_type: QuotaType, tags: Any) -> Any:
        return _answer(self.limit)

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        self.told.append((quota_type, entity, value))
        _answer(self.changed)

    def remove_quota(self, quota_type: QuotaType, entity: QuotaEntity) -> None:
        self.told.append((quota_type, entity, None))

    def quota_reset_required(self, quota_type: QuotaType) -> Any:
        return _answer(self.reset)

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> Any:
        self.told.append((sorted(cluster.leaders.items()), cluster.nodes))
        return _answer(self.changed)

    def close(self) -> None:
        self.told.append("closed")


class Refusing(Callback):
    """Does not like its settings."""

    def configure(self, config: Any) -> None:
        raise ValueError("no group is named")


class Half:
    """Is no callback."""

    def configure(self, config: Any) -> None:
        """Need nothing."""


def _answer(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def guarded(monotonic_ns: Callable[[], int] = lambda: 0) -> tuple[GuardedCallback, Callback]:
    """Return a guard and what it guards."""
    callback = Callback()
    return GuardedCallback(callback, "tests:Callback", monotonic_ns), callback


@pytest.mark.parametrize(
    "bad", [RuntimeError("boom"), math.nan, -1, -0.1, -math.inf, "7", True, [1], 10**400]
)
def test_the_last_good_limit_holds(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    """There is none where there was none; each failure is counted and logged as one of many."""
    guard, callback = guarded()
    callback.limit = bad
    assert guard.quota_limit(PRODUCE, {"group": "g"}) is None
    callback.limit = 7
    assert guard.quota_limit(PRODUCE, {"group": "g"}) == 7.0
    callback.limit = bad
    assert guard.quota_limit(PRODUCE, {"group": "g"}) == 7.0
    assert guard.quota_limit(QuotaType.FETCH, {"group": "g"}) is None
    assert guard.failures == 3
    assert all(hasattr(record, "repeats") for record in caplog.records)


@pytest.mark.parametrize(("answer", "limit"), [(None, None), (math.inf, None), (0, 0.0), (2**63, 2.0**63)])
def test_answers_that_are_limits(answer: Any, limit: float | None) -> None:
    """Infinity is no limit, and 0 is one."""
    guard, callback = guarded()
    callback.limit = answer
    assert guard.quota_limit(PRODUCE, {"group": "g"}) == limit
    assert guard.failures == 0


@pytest.mark.parametrize("bad", [RuntimeError("boom"), None, 7, ["group"], {"group": 7}, {7: "group"}])
def test_the_last_good_tags_hold(bad: Any) -> None:
    """Whoever never had any is counted together, without a limit, whatever the callback says of limits."""
    guard, callback = guarded()
    assert guard.quota_metric_tags(PRODUCE, "alice", "c1") == {"group": "g"}
    callback.tags = bad
    assert guard.quota_metric_tags(PRODUCE, "alice", "c1") == {"group": "g"}
    assert guard.quota_metric_tags(PRODUCE, "bob", "c1") is NO_TAGS
    assert guard.quota_limit(PRODUCE, NO_TAGS) is None
    assert guard.failures == 2
    managers = QuotaManagers(callback=guard)
    assert managers.produce.record("bob", "c1", 1e9, 1000) == 0


def test_wherever_a_callback_raises_the_engine_goes_on() -> None:
    """Quotas are told, resets asked for and the cluster told; a wrong answer to a yes-or-no question is a no."""
    guard, callback = guarded()
    managers = QuotaManagers(callback=guard)
    callback.changed = callback.reset = RuntimeError("boom")
    managers.produce.update_quota(QuotaEntity(user="alice"), 5.0)
    managers.update_cluster_metadata(ClusterMetadata.of({}, {}))
    assert managers.produce.record("alice", "c1", 1.0, 1000) == 0
    callback.reset = "yes"
    assert guard.quota_reset_required(PRODUCE) is False
    assert guard.failures >= 4


def test_what_is_remembered_is_bounded() -> None:
    """The oldest answers go, and long names are not kept."""
    guard, callback = guarded()
    for number in range(MAX_REMEMBERED + 1):
        guard.quota_metric_tags(PRODUCE, "u", f"c{number}")
    guard.quota_metric_tags(PRODUCE, "u", "x" * 1000)
    callback.tags = None
    assert guard.quota_metric_tags(PRODUCE, "u", f"c{MAX_REMEMBERED}") == {"group": "g"}
    assert guard.quota_metric_tags(PRODUCE, "u", "c0") is NO_TAGS
    assert guard.quota_metric_tags(PRODUCE, "u", "x" * 1000) is NO_TAGS


def test_what_a_callback_changes_afterwards_counts_for_nothing() -> None:
    """Tags are copied."""
    guard, callback = guarded()
    tags = guard.quota_metric_tags(PRODUCE, "alice", "c1")
    callback.tags["group"] = "other"
    assert tags == {"group": "g"}


def test_slow_calls_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """A call of more than 5 ms is counted and logged."""
    times: Iterator[int] = iter([0, 5_000_000, 0, 6_000_000])
    guard, _ = guarded(lambda: next(times))
    guard.quota_limit(PRODUCE, {})
    assert guard.slow == 0
    guard.quota_limit(PRODUCE, {})
    assert guard.slow == 1
    assert "quota_limit took 6.0 ms, expected at most 5" in caplog.text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nonsense", "expected package.module:Class"),
        ("tests.server.callback.test_callback_guard:", "expected package.module:Class"),
        ("no.such.module:Class", "ModuleNotFoundError"),
        ("tests.server.callback.test_callback_guard:Missing", "its module has no class 'Missing'"),
        ("os:abort", "its module has no class 'abort'"),
        ("tests.server.callback.test_callback_guard:Half", "the class lacks quota_limit, quota_metric_tags"),
        ("tests.server.callback.test_callback_guard:Refusing", "ValueError: no group is named"),
    ],
)
def test_a_class_that_cannot_be_a_callback_is_refused(name: str, reason: str) -> None:
    """With the reason, at the start."""
    with pytest.raises(ConfigError, match=reason):
        load_callback(name, {}, lambda: 0)


def test_a_change_asks_for_no_limit_before_it_is_used(with_node) -> None:
    """Fifty thousand clients or one: a stored quota and a changed cluster hold up nobody."""

    async def scenario(node: RunningNode) -> None:
        guard, callback = guarded()
        managers = node.node.managers
        run_at_once(managers.exchange_in_slices(guard, ()))
        for number in range(20):
            callback.tags = {"group": f"g{number}"}
            managers.produce.record("u", "c", 500.0, 1000)
        callback.changed, callback.limit = True, RuntimeError("asked")
        managers.produce.update_quota(QuotaEntity(user="alice"), 5.0)
        assert managers.update_cluster_metadata(ClusterMetadata.of({}, {}))
        assert guard.failures == 0
        callback.limit = 40.0
        assert managers.produce.record("u", "c", 0.0, 1000) == 2500
        assert {metric.bound for metric in managers.produce.metrics(1000)} == {40.0, None}

    with_node(scenario)


def test_failed_and_slow_calls_are_metrics(with_node) -> None:
    """Those of callbacks before the one in force are counted on; without one there are no such metrics."""

    async def scenario(node: RunningNode) -> None:
        follower = node.node.callback
        assert counted(node) == {}
        for number in (1, 2):
            times = iter([0, 6_000_000, *[0] * 100])
            guard, callback = guarded(lambda times=times: next(times))
            for _ in follower.exchange_in_slices(guard, node.node.config, ()):
                pass
            callback.limit = RuntimeError("boom")
            guard.quota_limit(PRODUCE, {})
            guard.quota_limit(PRODUCE, {})
            assert counted(node) == {"failed-call-total": 2.0 * number, "slow-call-total": 1.0 * number}
        for _ in follower.exchange_in_slices(None, node.node.config, ()):
            pass
        assert counted(node) == {}

    with_node(scenario)


def counted(node: RunningNode) -> dict[str, float]:
    """Return the metrics of a node's callback by name, all of them those that the page has."""
    metrics = [metric for metric in node.node.metrics(0) if metric.group == "ClientQuotaCallback"]
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text("utf-8")
    assert all(f"| ClientQuotaCallback | {metric.name} | | | calls |" in page for metric in metrics)
    return {metric.name: metric.value for metric in metrics}


def test_a_node_asks_the_callback_that_its_settings_name(tmp_path: Path) -> None:
    """It gets the settings, stored quotas and the cluster, each topic that comes and goes, and is closed at the end."""

    async def scenario() -> Callback:
        name = "tests.server.callback.test_callback_guard:Callback"
        settings = {"client.quota.callback.class": name, "client.quota.callback.group": "g"}
        async with whole_node(tmp_path, **settings) as node:
            guard = node.node.callback.current
            assert guard is not None
            callback: Callback = guard._callback  # type: ignore[assignment]
            assert callback.settings["client.quota.callback.group"] == "g"
            assert callback.settings["node.id"] == 1
            ((leaders, brokers),) = callback.told
            assert (leaders, [broker.port for broker in brokers]) == (
                [],
                [node.node.listeners["PLAINTEXT"].port],
            )
            wanted = {"num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
            topics = [{**wanted, "name": name} for name in ("a", "b")]
            message = {"topics": topics, "timeout_ms": 1000, "validate_only": False}
            await node.client.ask(encode_request(CREATE_TOPICS, 5, 1, "c", message)[4:])
            await until(lambda: len(callback.told[-1][0]) == 4)
            assert callback.told[-1][0] == [(("a", 0), 1), (("a", 1), 1), (("b", 0), 1), (("b", 1), 1)]
            message = {"topic_names": ["a"], "timeout_ms": 1000}
            await node.client.ask(encode_request(DELETE_TOPICS, 4, 2, "c", message)[4:])
            await until(lambda: len(callback.told[-1][0]) == 2)
            entity = [{"entity_type": "user", "entity_name": "alice"}]
            ops = [{"key": "producer_byte_rate", "value": 9.0, "remove": False}]
            message = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
            await node.client.ask(encode_request(ALTER_CLIENT_QUOTAS, 0, 3, "c", message)[4:])
            assert callback.told[-1] == (PRODUCE, QuotaEntity(user="alice"), 9.0)
            assert node.node.managers.produce.bound("alice", "c") == 100.0
        return callback

    assert asyncio.run(scenario()).told[-1] == "closed"
