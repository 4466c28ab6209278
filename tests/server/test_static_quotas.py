"""Quotas that are given as settings (KIP-13)."""

import asyncio
from pathlib import Path

import pytest
from tests.replaying.kernel import replay_events
from tests.server.nodes import MemoryStore, NodeClient, RunningNode, running_node, spool_events

from tidegate.errors import ConfigError
from tidegate.pipeline.layout import BYTE_MS
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.quota import UNLIMITED
from tidegate.server.administration.static_quotas import static_quotas
from tidegate.server.settings.config import ServerConfig

KEY = "producer_byte_rate"
SETTINGS = {"quota.producer.default": "1K", "quota.producer.override": "billing:4K, a:b:2M"}


def test_settings_become_records() -> None:
    """Suffixes stand for powers of 1024; a client id may hold colons; clients without an id have the default."""
    config = ServerConfig.load({**SETTINGS, "quota.consumer.default": "3G"})
    found = {(record.entity[0][1], record.key): record.value for record in static_quotas(config).values()}
    assert found == {
        (None, KEY): 1024.0,
        ("", KEY): 1024.0,
        ("billing", KEY): 4096.0,
        ("a:b", KEY): 2.0 * 1024**2,
        (None, "consumer_byte_rate"): 3.0 * 1024**3,
        ("", "consumer_byte_rate"): 3.0 * 1024**3,
    }
    assert not static_quotas(ServerConfig.load({}))


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        (
            "quota.producer.default",
            "fast",
            "quota.producer.default has 'fast', expected bytes per second from 1",
        ),
        ("quota.producer.default", "0", "expected bytes per second from 1"),
        ("quota.consumer.default", "9999999999G", "expected bytes per second from 1"),
        (
            "quota.producer.override",
            "billing",
            "quota.producer.override has 'billing', expected CLIENT_ID:BYTES",
        ),
        ("quota.producer.override", "billing:", "quota.producer.override has '', expected bytes per second"),
        ("quota.producer.override", ":4M", "expected CLIENT_ID:BYTES"),
        ("quota.producer.override", "a:1,a:2", "has client id 'a' twice"),
        ("quota.consumer.override", "a:-1", "expected bytes per second from 1"),
    ],
)
def test_bad_settings_are_refused(setting: str, text: str, message: str) -> None:
    """One line names the setting, what it has and what was expected."""
    with pytest.raises(ConfigError) as refused:
        static_quotas(ServerConfig.load({setting: text}))
    assert message in str(refused.value)


def test_exact_kafka_has_none() -> None:
    """Kafka has no such settings since 3.0: they have no effect, and that is said."""
    config = ServerConfig.load({**SETTINGS, "tidegate.kafka.exact": "true"})
    assert not static_quotas(config)
    assert any("quota.producer.default" in line and "no effect" in line for line in config.notices())


def test_dynamic_quotas_of_the_same_entity_win_while_they_are_there(with_node) -> None:
    """A setting is as if the client id, or the default one, had that quota; clients without an id have the default."""

    async def scenario(node: RunningNode) -> None:
        produce = node.node.managers.produce
        bound = lambda client_id: produce.bound("ANONYMOUS", client_id)  # noqa: E731
        assert [bound(name) for name in ("billing", "x", "")] == [4096.0, 1024.0, 1024.0]
        admin = await node.connect()
        await admin.alter([("client-id", "billing")], KEY, 7.0)
        await admin.alter([("client-id", None)], KEY, 8.0)
        assert [bound(name) for name in ("billing", "x", "")] == [7.0, 8.0, 1024.0]
        await admin.alter([("client-id", "billing")], KEY, None)
        await admin.alter([("client-id", None)], KEY, None)
        assert [bound(name) for name in ("billing", "x", "")] == [4096.0, 1024.0, 1024.0]
        await admin.alter([("user", "ANONYMOUS")], KEY, 9.0)
        assert [bound(name) for name in ("billing", "x", "")] == [9.0, 9.0, 9.0]
        assert node.node.managers.fetch.bound("ANONYMOUS", "billing") == UNLIMITED

    store = with_node(scenario, **SETTINGS)
    assert {record.key for record in store.load_quotas()} == {KEY}


def test_a_client_without_an_id_is_throttled_and_replayed(tmp_path: Path) -> None:
    """What the settings give is in the usage record, and a replay decides as the node did."""

    async def main() -> None:
        async with running_node(tmp_path, MemoryStore(), {"quota.producer.default": "1K"}) as node:
            answers: dict[str, list[int]] = {"": [], "x": []}
            for client_id, throttle_ms in answers.items():
                client: NodeClient = await node.connect(client_id)
                client.send_produce(padding=11_000)
                throttle_ms.append((await client.receive())[1]["throttle_time_ms"])
            assert all(throttle_ms[0] > 0 for throttle_ms in answers.values()), answers
            events = spool_events(node)
        replayed = replay_events(events, in_force_plan())
        recorded = [event["produce_throttle_ms"] for event in replayed.events]
        assert [int(row[BYTE_MS]) for row in replayed.decisions] == recorded
        assert sum(milliseconds > 0 for milliseconds in recorded) == 2

    asyncio.run(main())


def test_fetches_are_throttled_by_settings_too(with_node) -> None:
    """Default and override, with their suffixes; bytes produced are another quota's."""

    async def scenario(node: RunningNode) -> None:
        throttled = {}
        for client_id in ("billing", "x", ""):
            client = await node.connect(client_id)
            client.send_produce(padding=30_000)
            assert (await client.receive())[1]["throttle_time_ms"] == 0
            client.send_fetch(max_bytes=20_000)
            _, answer, size = await client.receive()
            throttled[client_id] = answer["throttle_time_ms"] > 0
            assert (size > 20_000) != throttled[client_id], "a throttled fetch is answered empty"
        assert throttled == {"billing": False, "x": True, "": True}

    with_node(scenario, **{"quota.consumer.default": "1K", "quota.consumer.override": "billing:1M"})
