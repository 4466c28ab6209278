"""Settings changed on a running node: connection limits, and the quota callback, which is exchanged under load."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.server.callback.test_callback_guard import Callback
from tests.server.nodes import until
from tests.server.whole_node import RawClient, WholeNode, whole_node
from tests.unit.storage.logs import batch

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    PRODUCE,
)
from tidegate.error_codes import MESSAGE_TOO_LARGE
from tidegate.quota import QuotaEntity, QuotaType
from tidegate.server.callback import node_callback
from tidegate.server.settings.setting_changes import APPEND, DELETE, MAX_SETTINGS, SET, SUBTRACT
from tidegate.storage.errors import StorageError
from tidegate.wire import encode_request, read_response

HERE = "tests.server.test_dynamic_settings"
CLASS, MODULES = "client.quota.callback.class", {"tidegate.callback.modules": "tests.server"}
NODE, TOPIC = 4, 2
PER_IP, OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"
NOW_MS = 1_700_000_000_000
WHICH_VERSIONS = encode_request(API_VERSIONS, 0, 1, "c", {})[4:]
Op = tuple[str, int, str | None]


class Half(Callback):
    """Gives everybody half of what it gave before."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 50.0


class Slow(Callback):
    """Is configured once a test allows it."""

    allowed = threading.Event()

    def configure(self, config: Any) -> None:
        assert self.allowed.wait(20)


class Broken(Callback):
    """Refuses what it is given."""

    def configure(self, config: Mapping[str, Any]) -> None:
        raise ValueError(f"no {config.get('client.quota.callback.needed', 'setting')}")


async def ask(client: RawClient, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one request."""
    frame = await client.ask(encode_request(api_key, version, 1, "admin", message)[4:])
    assert frame is not None
    flexible = (api_key, version) not in ((ALTER_CLIENT_QUOTAS, 0), (CREATE_TOPICS, 4))
    return read_response(api_key, version, frame, 5 if flexible else 4)


async def alter(
    client: RawClient, *ops: Op, name: str = "1", kind: int = NODE, validate_only: bool = False
) -> tuple[int, str | None]:
    """Send one IncrementalAlterConfigs; return code and text."""
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in ops]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    message = {"resources": resources, "validate_only": validate_only}
    (found,) = (await ask(client, INCREMENTAL_ALTER_CONFIGS, 1, message))["responses"]
    assert (found["resource_type"], found["resource_name"]) == (kind, name)
    return found["error_code"], found["error_message"]


async def exchange(client: RawClient, name: str, **options: Any) -> tuple[int, str | None]:
    """Name another class of this module."""
    return await alter(client, (CLASS, SET, f"{HERE}:{name}"), **options)


async def described(
    client: RawClient, key: str, name: str = "1"
) -> tuple[Any, int, bool, list[tuple[str, int]]]:
    """Return value, source, whether it is read only, and synonyms of a node's setting."""
    resources = [{"resource_type": NODE, "resource_name": name, "configuration_keys": [key]}]
    message = {"resources": resources, "include_synonyms": True, "include_documentation": False}
    (config,) = (await ask(client, DESCRIBE_CONFIGS, 4, message))["results"][0]["configs"]
    synonyms = [(synonym["value"], synonym["source"]) for synonym in config["synonyms"]]
    return config["value"], config["config_source"], config["read_only"], synonyms


async def limit(client: RawClient, user: str, rate: float, key: str = "producer_byte_rate") -> None:
    """Store a quota."""
    entity = [{"entity_type": "user", "entity_name": user}]
    ops = [{"key": key, "value": rate, "remove": False}]
    message = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    (entry,) = (await ask(client, ALTER_CLIENT_QUOTAS, 0, message))["entries"]
    assert entry["error_code"] == 0


def callback_of(node: WholeNode) -> Any:
    """Return the callback that the node asks, None for Kafka's own rules."""
    guard = node.node.callback.current
    return None if guard is None else guard._callback


def run(directory: Path, scenario: Callable[[WholeNode], Awaitable[None]], **settings: str) -> None:
    """Run a scenario against a node."""

    async def main() -> None:
        async with whole_node(directory, **settings) as node:
            await scenario(node)

    asyncio.run(main())


def test_a_callback_is_exchanged_on_the_running_node(tmp_path: Path) -> None:
    """The new one has the settings, all quotas and the cluster before it is asked; sensors begin afresh, both ways."""

    async def scenario(node: WholeNode) -> None:
        client, produce = node.client, node.node.managers.produce
        wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        await ask(client, CREATE_TOPICS, 4, {"topics": [wanted], "timeout_ms": 1, "validate_only": False})
        await limit(client, "alice", 7.0)
        assert produce.record("alice", "c", 1000.0, NOW_MS) > 0
        assert await exchange(client, "Callback") == (0, None)
        first: Callback = callback_of(node)
        assert first.settings["node.id"] == 1
        assert first.told[0] == (QuotaType.PRODUCE, QuotaEntity(user="alice"), 7.0)
        assert first.told[1][0] == [(("t", 0), 1)]
        assert len(produce.sensors) == 0
        assert produce.bound("alice", "c") == 100.0
        assert produce.record("alice", "c", 1000.0, NOW_MS) == 0
        assert await exchange(client, "Half") == (0, None)
        assert first.told[-1] == "closed"
        assert produce.bound("alice", "c") == 50.0
        await limit(client, "bob", 3.0)
        assert callback_of(node).told[-1] == (QuotaType.PRODUCE, QuotaEntity(user="bob"), 3.0)
        assert await alter(client, (CLASS, DELETE, None)) == (0, None)
        assert callback_of(node) is None
        assert (produce.bound("alice", "c"), produce.bound("bob", "c")) == (7.0, 3.0)
        assert produce.levels == 2
        assert produce.record("bob", "c", 1000.0, NOW_MS) > 0

    run(tmp_path, scenario, **MODULES)


@pytest.mark.alone
def test_a_throttle_that_runs_ends_at_its_time(tmp_path: Path) -> None:
    """Whoever was told to wait does so, whatever callback there is by then."""

    async def scenario(node: WholeNode) -> None:
        await limit(node.client, "ANONYMOUS", 0.0001, "request_percentage")
        slow, admin = (RawClient(node.node.listeners["PLAINTEXT"].port) for _ in range(2))
        message = {"topics": [], "allow_auto_topic_creation": False}
        request = encode_request(METADATA, 6, 1, "slow", message)[4:]
        throttle_ms = 0
        sent = 0.0  # a mute begins between a request and its answer
        while not throttle_ms:
            sent = time.monotonic()
            frame = await slow.ask(request)
            assert frame is not None
            throttle_ms = read_response(METADATA, 6, frame, 4)["throttle_time_ms"]
        assert await exchange(admin, "Callback") == (0, None)
        assert time.monotonic() - sent < throttle_ms / 1000
        await slow.ask(request)
        assert time.monotonic() - sent >= throttle_ms / 1000
        for client in (slow, admin):
            await client.close()

    run(tmp_path, scenario, **MODULES)


def test_a_class_that_does_not_load_leaves_the_one_before(tmp_path: Path) -> None:
    """The answer is error 40 with the reason, also where nothing but a check is asked for."""

    async def scenario(node: WholeNode) -> None:
        client = node.client
        assert await exchange(client, "Callback") == (0, None)
        before = callback_of(node)
        for name, reason in (
            ("Missing", "its module has no class 'Missing'"),
            ("Broken", "ValueError: no setting"),
        ):
            for validate_only in (False, True):
                code, text = await exchange(client, name, validate_only=validate_only)
                assert (code, reason in (text or "")) == (40, True), text
        code, text = await alter(client, (CLASS, SET, "os:abort"))
        assert (code, "expected a module of tidegate.callback.modules" in (text or "")) == (40, True)
        assert callback_of(node) is before
        assert before.told[-1] != "closed"
        assert (await described(client, CLASS))[0] == f"{HERE}:Callback"
        assert await exchange(client, "Half", validate_only=True) == (0, None)
        assert callback_of(node) is before

    run(tmp_path, scenario, **MODULES)


def test_a_changed_setting_of_the_callback_makes_a_new_one(tmp_path: Path) -> None:
    """What the settings begin with says whose they are; the same text again changes nothing."""

    async def scenario(node: WholeNode) -> None:
        client = node.client
        assert await exchange(client, "Callback") == (0, None)
        before = callback_of(node)
        assert await alter(client, ("client.quota.callback.group", SET, "g")) == (0, None)
        after = callback_of(node)
        assert after is not before
        assert after.settings["client.quota.callback.group"] == "g"
        assert await described(client, "client.quota.callback.group") == (None, 2, False, [(None, 2)])
        assert await exchange(client, "Callback") == (0, None)
        assert callback_of(node) is after

    run(tmp_path, scenario, **MODULES)


def test_others_are_served_while_a_class_loads(tmp_path: Path) -> None:
    """It loads on a thread; quotas can be changed meanwhile, and the new callback knows of it."""
    Slow.allowed.clear()

    async def scenario(node: WholeNode) -> None:
        admin = RawClient(node.node.listeners["PLAINTEXT"].port)
        task = asyncio.create_task(exchange(admin, "Slow"))
        served = 0
        while not task.done():
            await limit(node.client, "alice", 1.0 + served)
            served += 1
            if served == 11:
                assert not task.done()
                Slow.allowed.set()
        assert await task == (0, None)
        assert served > 10
        told = callback_of(node).told
        assert told[-1][-1] == float(served) or told[-2][-1] == float(served)
        await admin.close()

    run(tmp_path, scenario, **MODULES)


def test_a_class_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is answered."""
    monkeypatch.setattr(node_callback, "LOAD_S", 0.1)
    Slow.allowed.clear()

    async def scenario(node: WholeNode) -> None:
        code, text = await exchange(node.client, "Slow")
        Slow.allowed.set()
        assert (code, "not loaded within" in (text or "")) == (40, True)
        assert callback_of(node) is None

    run(tmp_path, scenario, **MODULES)


def test_changed_settings_survive_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A class that loads no more is said, and what was given at the start holds."""
    given = {**MODULES, CLASS: f"{HERE}:Callback"}

    async def change(node: WholeNode) -> None:
        assert await exchange(node.client, "Half") == (0, None)
        assert await alter(node.client, (PER_IP, SET, "77")) == (0, None)

    async def look(node: WholeNode) -> None:
        assert callback_of(node).limit == 50.0
        assert node.node.connections._limits.max_connections_per_ip == 77
        value, source, read_only, synonyms = await described(node.client, CLASS)
        assert (value, source, read_only) == (f"{HERE}:Half", 2, False)
        assert synonyms == [(f"{HERE}:Half", 2), (f"{HERE}:Callback", 4)]
        node.storage.store.change_settings("1", {CLASS: f"{HERE}:Gone"})

    async def look_again(node: WholeNode) -> None:
        assert callback_of(node).limit == 100.0
        assert (
            "its module has no class 'Gone'; the callback of the configuration stays in force" in caplog.text
        )

    run(tmp_path, change, **given)
    run(tmp_path, look, **given)
    with caplog.at_level(logging.ERROR):
        run(tmp_path, look_again, **given)


def test_what_cannot_be_any_more_is_left_out_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever takes a line out of the broker's file does not lose all that was changed since."""
    observed, rate = "tidegate.quota.observe", "max.connection.creation.rate"

    async def change(node: WholeNode) -> None:
        assert await alter(node.client, (PER_IP, SET, "0"), name="") == (0, None)
        assert await alter(node.client, (observed, SET, "client-id=a")) == (0, None)

    async def look(node: WholeNode) -> None:
        config = node.node.config
        assert (config[observed], config[PER_IP]) == ("client-id=a", 2**31 - 1)
        (line,) = [
            record.getMessage()
            for record in caplog.records
            if "ignored stored setting" in record.getMessage()
        ]
        why = "max.connections.per.ip is 0, which rejects every client"
        assert line.startswith(f"ignored stored setting {PER_IP}: {why}"), line
        assert await alter(node.client, (rate, SET, "900")) == (0, None)
        assert node.node.config[rate] == 900
        assert await alter(node.client, (PER_IP, SET, "7"), name="") == (0, None)
        assert node.node.config[PER_IP] == 7

    async def look_again(node: WholeNode) -> None:
        assert [node.node.config[name] for name in (PER_IP, rate)] == [7, 900]

    run(tmp_path, change, **{OVERRIDES: "127.0.0.1:9"})
    with caplog.at_level(logging.ERROR):
        run(tmp_path, look)
    run(tmp_path, look_again)


def test_connection_limits_change_at_once(tmp_path: Path) -> None:
    """Those of the node before those of all nodes; connections that are there stay."""

    async def scenario(node: WholeNode) -> None:
        client, key = node.client, PER_IP
        assert await alter(client, (key, SET, "2"), name="") == (0, None)
        assert await described(client, key) == ("2", 3, False, [("2", 3), ("2147483647", 5)])
        assert await described(client, key, name="") == ("2", 3, False, [("2", 3)])
        assert await alter(client, (key, SET, " 1 ")) == (0, None)
        assert await described(client, key) == ("1", 2, False, [(" 1 ", 2), ("2", 3), ("2147483647", 5)])
        refused = RawClient(node.node.listeners["PLAINTEXT"].port)
        assert await refused.ask(b"") is None
        assert await alter(client, (key, DELETE, None)) == (0, None)
        second = RawClient(node.node.listeners["PLAINTEXT"].port)
        assert (await described(second, key))[0] == "2"
        assert await refused.ask(b"") is None
        override = ("max.connections.per.ip.overrides", SET, "127.0.0.1:3")
        assert await alter(client, override, ("max.connection.creation.rate", SET, "9")) == (0, None)
        third = RawClient(node.node.listeners["PLAINTEXT"].port)
        assert (await described(third, "max.connection.creation.rate"))[:2] == ("9", 2)
        for other in (second, third):
            await other.close()

    run(tmp_path, scenario)


def test_limits_of_one_listener_change_at_once(tmp_path: Path) -> None:
    """They survive a restart, are described as Kafka does, and close nobody; the name of no listener is refused."""
    own, rate = (
        "listener.name.plaintext.max.connections",
        "listener.name.plaintext.max.connection.creation.rate",
    )

    async def change(node: WholeNode) -> None:
        client, port = node.client, node.node.listeners["PLAINTEXT"].port
        others = [RawClient(port) for _ in range(2)]
        for other in others:
            assert await other.ask(WHICH_VERSIONS) is not None
        assert await alter(client, (own, SET, "2")) == (0, None)
        assert await alter(client, (rate, SET, "9"), name="") == (0, None)
        late = RawClient(port)
        answer = asyncio.ensure_future(late.ask(WHICH_VERSIONS))
        await until(lambda: len(node.node._acceptors["PLAINTEXT"]._waiting) == 1)
        for other in others:
            assert await other.ask(WHICH_VERSIONS) is not None
        await others[0].close()
        await others[1].close()
        assert await answer is not None
        await late.close()

    async def look(node: WholeNode) -> None:
        client, most = node.client, "2147483647"
        assert await described(client, own) == ("2", 2, True, [("2", 2), (most, 5)])
        assert await described(client, rate) == ("9", 3, True, [("9", 3), (most, 5)])
        assert await described(client, rate, name="") == ("9", 3, True, [("9", 3)])
        second, late = (RawClient(node.node.listeners["PLAINTEXT"].port) for _ in range(2))
        assert await second.ask(WHICH_VERSIONS) is not None
        answer = asyncio.ensure_future(late.ask(WHICH_VERSIONS))
        await until(lambda: len(node.node._acceptors["PLAINTEXT"]._waiting) == 1)
        assert await alter(client, (own, DELETE, None)) == (0, None)
        assert await answer is not None
        text = (
            f"This server has no such settings: [listener.name.text.max.connections]; did you mean '{own}'?"
        )
        assert await alter(client, ("listener.name.text.max.connections", SET, "2")) == (42, text)
        zero = "Invalid value org.apache.kafka.common.config.ConfigException: Invalid max.connections 0"
        assert await alter(client, (own, SET, "0")) == (
            42,
            f"{zero} for configuration Invalid dynamic configuration",
        )
        text = "Invalid value x for configuration max.connections: Not a number of type INT"
        assert await alter(client, (own, SET, "x")) == (42, text)
        for other in (second, late):
            await other.close()

    run(tmp_path, change)
    run(tmp_path, look)


def test_a_lowered_maximum_closes_who_was_idle_longest(tmp_path: Path) -> None:
    """As in Kafka: of eleven connections the six unused for longest (B§6.9.5); later clients wait for a place."""

    async def scenario(node: WholeNode) -> None:
        port = node.node.listeners["PLAINTEXT"].port
        clients = [RawClient(port) for _ in range(10)]
        for client in clients:
            assert await client.ask(WHICH_VERSIONS) is not None
        assert await alter(node.client, ("max.connections", SET, "5")) == (0, None)
        assert [await client.ask(WHICH_VERSIONS) is None for client in clients] == [True] * 6 + [False] * 4
        assert node.node.connections.total == 5
        late = RawClient(port)
        answer = asyncio.ensure_future(late.ask(WHICH_VERSIONS))
        await until(lambda: len(node.node._acceptors["PLAINTEXT"]._waiting) == 1)
        assert not answer.done()
        assert await alter(node.client, ("max.connections", SET, "6")) == (0, None)
        assert await answer is not None
        for client in (*clients, late):
            await client.close()

    run(tmp_path, scenario)


def test_what_cannot_be_changed_is_refused_in_kafkas_words(tmp_path: Path) -> None:
    """Each of them changes nothing, together with what could be changed."""
    key = "max.connections"

    async def scenario(node: WholeNode) -> None:
        client = node.client
        good = (key, SET, "5")
        for ops, code, text in (
            (
                [good, ("quota.window.num", SET, "5")],
                42,
                "Cannot update these configs dynamically: [quota.window.num]",
            ),
            (
                [good, ("max.connections.per.ip", SET, None)],
                42,
                "Null value not supported for : max.connections.per.ip",
            ),
            (
                [("tidegate.quota.observ", SET, "all")],
                42,
                "This server has no such settings: [tidegate.quota.observ]; "
                "did you mean 'tidegate.quota.observe'?",
            ),
            (
                [("tidegate.quota.cluster.wide", SET, "all")],
                42,
                "Only a gateway has cluster-wide quotas: [tidegate.quota.cluster.wide]",
            ),
            ([("retention", SET, "1")], 42, "This server has no such settings: [retention]"),
            (
                [("log.retention.hours", SET, "5")],
                42,
                "Cannot update these configs dynamically: [log.retention.hours]",
            ),
            (
                [("compression.type", APPEND, "gzip")],
                40,
                "Config value append is not allowed for config key: compression.type",
            ),
            (
                [("num.io.threads", SET, "9"), ("listeners", SET, "PLAINTEXT://127.0.0.1:1")],
                42,
                "These settings have no effect on this server: [num.io.threads]",
            ),
            (
                [
                    ("listener.name.plaintext.sasl.jaas.config", SET, "x"),
                    ("sasl.enabled.mechanisms", SET, "PLAIN"),
                ],
                42,
                "This server reads these settings only when it starts: "
                "[listener.name.plaintext.sasl.jaas.config, sasl.enabled.mechanisms]",
            ),
            (
                [("log.roll.ms", SET, "0")],
                42,
                "requirement failed: log.roll.ms must be greater than or equal to 1",
            ),
            (
                [("log.cleanup.policy", SET, "delete,shrink")],
                42,
                "Invalid value shrink for configuration log.cleanup.policy: String must be one of: compact, delete",
            ),
            ([good, good], 42, "Error due to duplicate config keys"),
            (
                [good, (PER_IP, SET, None), ("x", APPEND, None)],
                42,
                f"Null value not supported for : {PER_IP}, x",
            ),
            ([(key, APPEND, "5")], 40, f"Config value append is not allowed for config key: {key}"),
            ([(PER_IP, APPEND, "5"), (key, 9, "5")], 42, "Unknown operations type 9"),
            ([(key, SET, "1e3")], 42, f"Invalid value 1e3 for configuration {key}: Not a number of type INT"),
            ([(key, SET, " ")], 42, f"Invalid value   for configuration {key}: Not a number of type INT"),
            ([(key, SET, " -01")], 42, f"Invalid value -1 for configuration {key}: Value must be at least 0"),
            (
                [(OVERRIDES, SET, "a"), (key, SET, "1e3")],
                42,
                f"Invalid value 1e3 for configuration {key}: Not a number of type INT",
            ),
        ):
            assert await alter(client, *ops) == (code, text)
        code, text = await alter(client, (key, APPEND, None), kind=NODE, name="7")
        assert (code, text) == (42, f"Null value not supported for : {key}")
        assert await alter(client, (key, 9, "5"), kind=TOPIC, name="x") == (-1, None)
        assert await alter(client, (key, 9, "5"), kind=3, name="x") == (42, "Unknown resource type 3")
        found = await alter(client, ("retention.ms", SET, "5"), kind=TOPIC, name="x")
        assert found == (3, "The topic 'x' does not exist.")
        assert await alter(client, good, kind=NODE, name="7") == (
            42,
            "Unexpected broker id, expected 1, but received 7",
        )
        assert (await alter(client, good, kind=32, name="g"))[0] == 40
        many = [(f"client.quota.callback.x{number}", SET, "1") for number in range(MAX_SETTINGS + 1)]
        assert (await alter(client, *many))[0] == 44
        assert await alter(client, ("quota.window.num", DELETE, None)) == (0, None)
        assert (await described(client, key))[1] == 5

    run(tmp_path, scenario)


def test_a_mistake_in_overrides_is_refused_in_words_of_our_own(tmp_path: Path) -> None:
    """Kafka answers what its parser of numbers or texts happens to say."""

    async def scenario(node: WholeNode) -> None:
        for text in ("a", ":5", "10.0.0.1:x", "10.0.0.1:2147483648"):
            assert await alter(node.client, (OVERRIDES, SET, text)) == (
                42,
                f"{OVERRIDES} must be pairs of host and count, got {text!r}",
            )
        assert (await described(node.client, OVERRIDES))[1] == 5

    run(tmp_path, scenario)


def test_a_mistake_of_a_listener_is_refused_in_the_same_words_beside_others(tmp_path: Path) -> None:
    """Kafka puts the class of an exception around them then."""
    own = "listener.name.plaintext.max.connections"
    text = "Invalid value :5 for configuration max.connections: Not a number of type INT"

    async def scenario(node: WholeNode) -> None:
        assert await alter(node.client, (own, SET, ":5")) == (42, text)
        assert await alter(node.client, ("max.connections", SET, "+5000"), (own, SET, ":5")) == (42, text)

    run(tmp_path, scenario)


def test_numbers_may_have_the_digits_of_any_script(tmp_path: Path) -> None:
    """Java reads them so."""
    three = "\N{ARABIC-INDIC DIGIT THREE}"

    async def scenario(node: WholeNode) -> None:
        assert await alter(node.client, (PER_IP, SET, three), (OVERRIDES, SET, f"10.0.0.1:{three}")) == (
            0,
            None,
        )
        assert (await described(node.client, PER_IP))[0] == "3"
        limits = node.node.connections._limits
        assert (limits.max_connections_per_ip, limits.max_connections_per_ip_overrides) == (
            3,
            {"10.0.0.1": 3},
        )

    run(tmp_path, scenario)


def test_a_node_is_changed_however_its_number_is_written(tmp_path: Path) -> None:
    """Kafka acknowledges it and changes nothing."""

    async def scenario(node: WholeNode) -> None:
        assert await alter(node.client, (PER_IP, SET, "77"), name="+01") == (0, None)
        assert await described(node.client, PER_IP) == ("77", 2, False, [("77", 2), ("2147483647", 5)])

    run(tmp_path, scenario)


def test_an_operation_that_there_is_not_fails_its_resource(tmp_path: Path) -> None:
    """What is asked of others is done."""
    config = {"name": PER_IP, "config_operation": 0, "value": "77"}
    resources = [
        {"resource_type": TOPIC, "resource_name": "t", "configs": [{**config, "config_operation": 9}]},
        {"resource_type": NODE, "resource_name": "1", "configs": [config]},
    ]

    async def scenario(node: WholeNode) -> None:
        message = {"resources": resources, "validate_only": False}
        found = await ask(node.client, INCREMENTAL_ALTER_CONFIGS, 1, message)
        assert [response["error_code"] for response in found["responses"]] == [-1, 0]
        assert (await described(node.client, PER_IP))[0] == "77"

    run(tmp_path, scenario)


def test_exact_kafka_keeps_its_callback(tmp_path: Path) -> None:
    """It is read only there, and refused with Kafka's text."""

    async def scenario(node: WholeNode) -> None:
        code, text = await exchange(node.client, "Half")
        assert (code, text) == (42, f"Cannot update these configs dynamically: [{CLASS}]")
        assert (await described(node.client, CLASS))[2] is True

    run(tmp_path, scenario, **MODULES, **{"tidegate.kafka.exact": "true"})


def test_exact_kafka_ignores_a_callback_that_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was changed on the running broker before: it is not loaded, and a warning names the setting."""

    async def change(node: WholeNode) -> None:
        assert await exchange(node.client, "Half") == (0, None)

    async def look(node: WholeNode) -> None:
        assert callback_of(node) is None

    run(tmp_path, change, **MODULES)
    caplog.clear()
    run(tmp_path, look, **MODULES, **{"tidegate.kafka.exact": "true"})
    assert f"ignored {CLASS}" in caplog.text


def test_what_cannot_be_stored_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is Kafka's storage error; the callback that was loaded is closed."""

    async def scenario(node: WholeNode) -> None:
        def fail(node: str, changes: object) -> None:
            raise StorageError("database or disk is full")

        monkeypatch.setattr(node.storage.store, "change_settings", fail)
        code, text = await exchange(node.client, "Callback")
        assert (code, text) == (56, "The settings could not be stored; nothing was changed.")
        assert callback_of(node) is None
        assert (await described(node.client, CLASS))[0] is None

    run(tmp_path, scenario, **MODULES)


def test_a_list_that_cannot_be_is_refused_where_it_is_not_in_force_too(tmp_path: Path) -> None:
    """A value for all nodes that the node's own hides: else the own one could not be taken back."""
    observe = "tidegate.quota.observe"

    async def scenario(node: WholeNode) -> None:
        assert await alter(node.client, (observe, SET, "user=alice")) == (0, None)
        code, text = await alter(node.client, (observe, SET, "alice"), name="")
        assert (code, "expected all, none, or entities" in (text or "")) == (40, True)
        assert (await alter(node.client, (observe, DELETE, None)))[0] == 0

    run(tmp_path, scenario)


async def create(client: RawClient, name: str, **configs: str) -> None:
    """Create a topic of one partition."""
    given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": given}
    message = {"topics": [wanted], "timeout_ms": 1000, "validate_only": False}
    (found,) = (await ask(client, CREATE_TOPICS, 4, message))["topics"]
    assert found["error_code"] == 0


async def produced(client: RawClient, name: str) -> int:
    """Produce a batch of some 170 bytes; return the error code."""
    part = {"index": 0, "records": batch(value=bytes(100))}
    topics = [{"name": name, "partition_data": [part]}]
    message = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": topics}
    (found,) = (await ask(client, PRODUCE, 9, message))["responses"][0]["partition_responses"]
    code: int = found["error_code"]
    return code


async def topic_setting(client: RawClient, topic: str, key: str) -> tuple[str, int]:
    """Return value and source of a topic's setting."""
    resources = [{"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [key]}]
    message = {"resources": resources, "include_synonyms": False, "include_documentation": False}
    (config,) = (await ask(client, DESCRIBE_CONFIGS, 4, message))["results"][0]["configs"]
    return config["value"], config["config_source"]


def test_defaults_of_topics_change_at_once_and_stay(tmp_path: Path) -> None:
    """For topics without their own: one node's value before that of all, before the file's; also after a restart."""
    size, key = "message.max.bytes", "max.message.bytes"

    async def change(node: WholeNode) -> None:
        client = node.client
        await create(client, "plain")
        await create(client, "own", max_message_bytes="500")
        assert [await produced(client, name) for name in ("plain", "plain", "own")] == [0, 0, 0]
        assert await alter(client, (size, SET, "100"), validate_only=True) == (0, None)
        assert await produced(client, "plain") == 0
        assert await alter(client, (size, SET, "100"), name="") == (0, None)
        assert [await produced(client, name) for name in ("plain", "own")] == [MESSAGE_TOO_LARGE, 0]
        assert (await topic_setting(client, "plain", key), await topic_setting(client, "own", key)) == (
            ("100", 3),
            ("500", 1),
        )
        assert await alter(client, (size, SET, "400")) == (0, None)
        assert await produced(client, "plain") == 0
        await create(client, "new")
        assert (await topic_setting(client, "new", key), await produced(client, "new")) == (("400", 2), 0)
        for name, text in (("log.retention.ms", "5000"), ("log.retention.bytes", "77"), ("log.roll.ms", "9"),
                           ("log.segment.bytes", "2000000"), ("log.flush.interval.messages", "3"),
                           ("log.message.timestamp.type", "LogAppendTime"), ("log.cleanup.policy", "compact,delete"),
                           ("producer.id.expiration.ms", "6000")):  # fmt: skip
            assert await alter(client, (name, SET, text)) == (0, None)

    async def look(node: WholeNode) -> None:
        for name in ("plain", "new"):
            topic = node.storage.topics.by_name[name]
            settings = topic.settings
            assert (settings.retention_ms, settings.retention_bytes, settings.segment_ms) == (5000, 77, 9)
            assert (settings.segment_bytes, settings.flush_messages) == (2_000_000, 3)
            assert (settings.log_append_time, settings.compacted, settings.only_compacted) == (
                True,
                True,
                False,
            )
            assert topic.logs[0].settings is settings
            assert topic.logs[0].producers.expiration_ms == 6000
        assert await described(node.client, size) == (
            "400",
            2,
            False,
            [("400", 2), ("100", 3), ("1048588", 5)],
        )

    async def change_and_look(node: WholeNode) -> None:
        await change(node)
        await look(node)

    async def look_and_reset(node: WholeNode) -> None:
        await look(node)
        client = node.client
        assert await alter(client, (size, DELETE, None), ("log.retention.ms", DELETE, None)) == (0, None)
        assert await produced(client, "plain") == MESSAGE_TOO_LARGE
        assert node.storage.topics.by_name["plain"].settings.retention_ms == 3_600_000
        assert await alter(client, (size, DELETE, None), name="") == (0, None)
        assert await produced(client, "plain") == 0

    run(tmp_path, change_and_look, log_retention_hours="1")
    run(tmp_path, look_and_reset, log_retention_hours="1")


def test_settings_without_effect_that_topics_show_can_be_changed(tmp_path: Path) -> None:
    """They are described with the source, and do nothing, as at the start."""

    async def scenario(node: WholeNode) -> None:
        client = node.client
        await create(client, "plain")
        assert await alter(client, ("compression.type", SET, "zstd")) == (0, None)
        assert await alter(client, ("log.cleaner.min.cleanable.ratio", SET, "0.30"), name="") == (0, None)
        assert await topic_setting(client, "plain", "compression.type") == ("zstd", 2)
        assert await topic_setting(client, "plain", "min.cleanable.dirty.ratio") == ("0.3", 3)
        assert await alter(client, ("log.cleanup.policy", APPEND, "compact")) == (0, None)
        assert await topic_setting(client, "plain", "cleanup.policy") == ("delete,compact", 2)
        assert await alter(client, ("log.cleanup.policy", SUBTRACT, "delete")) == (0, None)
        assert await topic_setting(client, "plain", "cleanup.policy") == ("compact", 2)

    run(tmp_path, scenario)


def test_what_cannot_be_kept_changes_no_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that the node could not start with, or that the disk does not take, leaves all as it was."""

    async def scenario(node: WholeNode) -> None:
        client = node.client
        await create(client, "plain")
        code, text = await alter(client, ("log.retention.ms", SET, "0"))
        assert (code, (text or "").startswith("requirement failed: log.retention.ms must be unlimited")) == (
            42,
            True,
        )

        def fail(*_: object) -> None:
            raise StorageError("the disk is full")

        monkeypatch.setattr(node.storage.store, "change_settings", fail)
        code, _ = await alter(client, ("log.retention.ms", SET, "5"))
        assert code == 56
        assert node.storage.topics.by_name["plain"].settings.retention_ms == 604_800_000
        assert await topic_setting(client, "plain", "retention.ms") == ("604800000", 5)

    run(tmp_path, scenario)
