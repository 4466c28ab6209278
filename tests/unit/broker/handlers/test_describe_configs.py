"""Tests of DescribeConfigs: what a real Apache Kafka 4.3.1 answered, long requests in slices, bounded answers."""

import json
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import CONNECTION, Node

from tidegate.broker.handlers import describe_configs
from tidegate.server.requests.handler import Answer, Request
from tidegate.server.settings.table import SETTINGS, STATIC_QUOTA_SETTINGS
from tidegate.storage.config import MAX_PARTITIONS
from tidegate.tls.settings import SECRET_TLS_SETTINGS
from tidegate.wire import decode_request_header, encode_request

DESCRIBE_CONFIGS = 32
TOPIC, NODE, LOGGERS, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
RECORDED = {
    (result["resource_type"], result["resource_name"]): result
    for result in json.loads((Path(__file__).parents[3] / "vectors" / "described_configs.json").read_text())[
        "results"
    ]
}
GIVEN_TO_KAFKA = {
    "advertised.listeners", "controller.listener.names", "listeners", "log.dirs", "node.id", "num.partitions",
}  # fmt: skip
"""Settings of the recorded broker that this node was not given."""


def ask(node: Node, *resources: tuple[int, str, list[str] | None], version: int = 4, **options: bool) -> Any:
    """Return the results for resources given as type, name and settings."""
    request = {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for kind, name, keys in resources
        ],
        "include_synonyms": True,
        "include_documentation": False,
        **options,
    }
    return node.call(DESCRIBE_CONFIGS, version, request)["results"]


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of a result by name, without documentation, as they were recorded."""
    return {
        config["name"]: {key: value for key, value in config.items() if key != "documentation"}
        for config in result["configs"]
    }


@pytest.fixture
def as_recorded(tmp_path: Path) -> Iterator[Node]:
    """Return a node with the settings of the recorded broker."""
    node = Node(
        tmp_path / "recorded",
        given={"log.retention.ms": "-1", "group.initial.rebalance.delay.ms": "0"},
        kafka_exact=True,
        log_retention_ms=-1,
    )
    yield node
    node.storage.close()


@pytest.mark.parametrize(
    ("kind", "name"), [(TOPIC, "orders"), (CLIENT_METRICS, "a"), (GROUP, "g"), (NODE, "")]
)
def test_described_as_recorded(as_recorded: Node, kind: int, name: str) -> None:
    """Values, sources, types and synonyms, in their order, are those of a real broker."""
    as_recorded.create("orders", retention_ms="5000", max_message_bytes="77")
    (result,) = ask(as_recorded, (kind, name, None))
    assert by_name(result) == by_name(RECORDED[kind, name])
    assert result["error_code"] == 0


def test_node_is_described_as_recorded(as_recorded: Node) -> None:
    """Settings that Kafka has too are described as there; the others are ours, and those it had until 3.0."""
    (result,) = ask(as_recorded, (NODE, "1", None))
    ours, recorded = by_name(result), by_name(RECORDED[NODE, "1"])
    assert {name for name in ours if name not in recorded} == {
        name for name in ours if name.startswith(("tidegate.", *STATIC_QUOTA_SETTINGS))
    }
    for name in ours.keys() & recorded.keys():
        for config in (ours[name], recorded[name]):
            if name in GIVEN_TO_KAFKA:
                del config["config_source"], config["synonyms"], config["value"]
            elif name in SETTINGS:  # what a default is, our own table says
                config["value"] = config["value"] is None
                config["synonyms"] = [(synonym["name"], synonym["source"]) for synonym in config["synonyms"]]
        assert ours[name] == recorded[name]


def test_given_settings_are_static(tmp_path: Path) -> None:
    """What was set at the start is described with its source, and the default behind it."""
    given = {
        "quota.window.num": " 21",
        "log.retention.hours": "1",
        "num.io.threads": "9",
        "tidegate.kafka.exact": "TRUE",
    }
    node = Node(tmp_path, given=given, log_retention_ms=3_600_000)
    node.create("orders")
    described = by_name(ask(node, (NODE, "1", None))[0])
    assert described["quota.window.num"]["value"] == "21"
    assert described["quota.window.num"]["config_source"] == 4
    assert described["quota.window.num"]["synonyms"] == [
        {"name": "quota.window.num", "value": " 21", "source": 4},
        {"name": "quota.window.num", "value": "11", "source": 5},
    ]
    assert described["log.retention.hours"]["value"] == "1"
    assert described["tidegate.kafka.exact"]["value"] == "true"
    assert "num.io.threads" not in described  # has no effect
    topic = by_name(ask(node, (TOPIC, "orders", None))[0])["retention.ms"]
    assert (topic["value"], topic["config_source"], topic["synonyms"]) == (
        "3600000",
        5,
        [],
    )  # as Kafka has it


def test_documentation_is_there_when_asked_for(node: Node) -> None:
    """Every setting of everything has a sentence."""
    node.create("orders")
    resources = [
        (TOPIC, "orders", None),
        (NODE, "1", None),
        (NODE, "", None),
        (CLIENT_METRICS, "a", None),
        (GROUP, "g", None),
    ]
    for result in ask(node, *resources, include_documentation=True):
        texts = [config["documentation"] for config in result["configs"]]
        assert all(isinstance(text, str) and 10 < len(text) < 120 for text in texts), texts
    assert all(
        config["documentation"] is None for result in ask(node, *resources) for config in result["configs"]
    )


@pytest.mark.parametrize("version", range(1, 5))
def test_some_settings(node: Node, version: int) -> None:
    """Only the settings that are named are described; an empty list asks for all, unknown names for nothing."""
    node.create("orders", retention_ms="5")
    names = [
        [config["name"] for config in result["configs"]]
        for result in ask(
            node,
            (TOPIC, "orders", ["retention.ms", "nope", "retention.ms"]),
            (TOPIC, "orders", ["nope"]),
            (TOPIC, "orders", []),
            (TOPIC, "orders", None),
            version=version,
        )
    ]
    assert names[:2] == [["retention.ms"], []]
    assert [len(some) for some in names[2:]] == [33, 33]
    assert all(
        not config["synonyms"]
        for config in ask(node, (TOPIC, "orders", None), include_synonyms=False)[0]["configs"]
    )


def test_loggers_are_described(node: Node) -> None:
    """The levels of this process's loggers, by Kafka's names of levels."""
    loggers = by_name(ask(node, (LOGGERS, "1", None))[0])
    assert {"root", "tidegate.storage.storage"} <= loggers.keys()
    assert {logger["value"] for logger in loggers.values()} <= {"DEBUG", "INFO", "WARN", "ERROR", "FATAL"}
    assert {logger["config_source"] for logger in loggers.values()} == {6}


@pytest.mark.parametrize(
    ("kind", "name", "code", "text"),
    [
        (TOPIC, "absent", 3, ""),
        (TOPIC, "", 17, "Topic name is invalid: the empty string is not allowed"),
        (TOPIC, "..", 17, "Topic name is invalid: '..' is not allowed"),
        (NODE, "9", 42, "Unexpected broker id, expected 1 or empty string, but received 9"),
        (NODE, "+2", 42, "Unexpected broker id, expected 1 or empty string, but received +2"),
        (NODE, " 1", 42, "Broker id must be an integer, but it is:  1"),
        (NODE, "2147483648", 42, "Broker id must be an integer, but it is: 2147483648"),
        (LOGGERS, "9", 42, "Unexpected broker id, expected 1 but received 9"),
        (LOGGERS, "", 42, "Broker id must not be empty"),
        (CLIENT_METRICS, "", 42, "Client metrics subscription name must not be empty"),
        (GROUP, "", 42, "Group name must not be empty"),
    ],
)
def test_what_cannot_be_described(node: Node, kind: int, name: str, code: int, text: str) -> None:
    """Kafka's code and text; what else was asked for is described all the same."""
    refused, described = ask(node, (kind, name, None), (NODE, "+01", None))
    assert (refused["error_code"], refused["error_message"], refused["configs"]) == (code, text, [])
    assert (refused["resource_type"], refused["resource_name"]) == (kind, name)
    assert (described["error_code"], described["resource_name"]) == (0, "+01")
    assert described["configs"]


@pytest.mark.parametrize("kind", [-128, 0, 1, 3, 7, 64])
def test_an_unknown_kind_fails_the_whole_request(node: Node, kind: int) -> None:
    """Nothing is described where one of the resources is of no kind that Kafka knows."""
    results = ask(node, (NODE, "1", None), (kind, "x", None))
    assert [result["error_code"] for result in results] == [42, 42]
    assert all(result["error_message"].startswith("This most likely occurs") for result in results)
    assert not any(result["configs"] for result in results)


def test_named_twice_described_twice(node: Node) -> None:
    """As Kafka answers it."""
    node.create("orders")
    first, second = ask(node, (TOPIC, "orders", None), (TOPIC, "orders", None))
    assert first == second
    assert len(first["configs"]) == 33


def test_answers_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would exceed the bound is refused with the reason; before and after it, what fits is described."""
    node.create("orders")
    monkeypatch.setattr(describe_configs, "MAX_ANSWER_BYTES", 20_000)
    results = ask(node, *[(TOPIC, "orders", None)] * 20, (TOPIC, "orders", ["retention.ms"]))
    codes = [result["error_code"] for result in results]
    fitting = codes.index(42)
    assert 2 < fitting < 15
    assert codes == [0] * fitting + [42] * (20 - fitting) + [0]
    assert "expected fewer resources" in results[fitting]["error_message"]


class _Measured:
    """A request as the handler worked on it: its long steps, in CPU time, and the size of the answer."""

    def __init__(self, node: Node, frame: memoryview) -> None:
        asked = Request(decode_request_header(frame), frame, CONNECTION, node.permits, node.clock.now_ms())
        work: Any = node.handlers[DESCRIBE_CONFIGS](asked)
        self.long_steps_ms: list[float] = []
        while True:
            begun_ns = time.thread_time_ns()
            try:
                next(work)
            except StopIteration as stop:
                answer = stop.value
                break
            finally:
                took_ms = (time.thread_time_ns() - begun_ns) / 1e6
                if took_ms > LONGEST_STEP_MS:
                    self.long_steps_ms.append(took_ms)
        assert isinstance(answer, Answer)
        assert answer.response is not None
        self.answer_bytes = answer.response.size


def frame_of(*resources: tuple[int, str, list[str] | None]) -> memoryview:
    """Return a request that asks for everything there is to know."""
    request = {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for kind, name, keys in resources
        ],
        "include_synonyms": True,
        "include_documentation": True,
    }
    return memoryview(encode_request(DESCRIBE_CONFIGS, 4, 7, "tester", request)[4:])


LONGEST_STEP_MS = 5.0
"""Steps take about a millisecond at most. A collection of garbage that falls into one makes it longer: two may be."""


@pytest.mark.alone
@pytest.mark.parametrize(
    "resources",
    [
        pytest.param([(TOPIC, "orders", None)] * 4000, id="4,000 topics, everything about them"),
        pytest.param([(NODE, "1", None)] * 20_000, id="the node, 20,000 times"),
        pytest.param([(GROUP, "g", None)] * 99_000, id="99,000 groups"),
        pytest.param([(3, "", None)] * 99_000, id="99,000 of no kind"),
        pytest.param([(TOPIC, "orders", ["x"] * 99_000)], id="99,000 settings"),
    ],
)
def test_long_requests_go_in_short_steps(
    node: Node, resources: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step is long, and the memory is the answer's, the request's 64 times over, and a megabyte."""
    monkeypatch.setattr(describe_configs, "MAX_ANSWER_BYTES", 30_000_000)
    node.create("orders", **OWN)
    ask(node, (TOPIC, "orders", None), (NODE, "1", None), (GROUP, "g", None), include_documentation=True)
    measured = _Measured(node, frame_of(*resources))
    assert len(measured.long_steps_ms) < 3, measured.long_steps_ms
    frame = frame_of(*resources[: max(1, len(resources) // 20)])
    tracemalloc.start()
    measured = _Measured(node, frame)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < measured.answer_bytes + 64 * len(frame) + 1_000_000


@pytest.mark.alone
def test_the_largest_honest_answer_is_whole(node: Node) -> None:
    """Everything about as many topics as a node can have, each with settings of its own, is half of the bound."""
    node.create("orders", **OWN)
    some = _Measured(node, frame_of(*[(TOPIC, "orders", None)] * 40))
    assert some.answer_bytes * MAX_PARTITIONS / 40 < describe_configs.MAX_ANSWER_BYTES / 2


OWN = {
    "retention_ms": "5",
    "segment_bytes": "1048576",
    "max_message_bytes": "77",
    "cleanup_policy": "compact",
}


def test_no_secret_is_described(tmp_path: Path) -> None:
    """Passwords, keys and JAAS lines, of all listeners and of one, as their own value and behind others: null."""
    secret = "hunter2"
    base = dict.fromkeys(SECRET_TLS_SETTINGS, secret)
    jaas = {
        f"{mechanism}.sasl.jaas.config": secret for mechanism in ("plain", "scram-sha-256", "scram-sha-512")
    }
    given = {**base, **{f"listener.name.plaintext.{name}": secret for name in (*base, *jaas, "ssl.odd.key")}}
    own = {"listener.name.plaintext.ssl.keystore.location": "/a/b.p12", "ssl.keystore.location": "/c.p12"}
    node = Node(tmp_path, given={**given, **own})
    results = ask(node, (NODE, "1", None), include_documentation=True)
    described = by_name(results[0])
    for name in given:
        entry = described[name]
        assert (entry["value"], entry["is_sensitive"]) == (None, True), name
        assert [synonym["value"] for synonym in entry["synonyms"]] == [None] * len(entry["synonyms"])
        assert entry["config_type"] == (0 if name.endswith("odd.key") else 9)
        assert entry["config_source"] == 4
    assert secret not in str(results)
    location = described["listener.name.plaintext.ssl.keystore.location"]
    assert (location["value"], location["is_sensitive"], location["read_only"]) == ("/a/b.p12", False, True)
    assert [(each["name"], each["value"]) for each in location["synonyms"]] == list(own.items())
