"""What the metrics listener of a node returns, and to whom."""

import asyncio
import base64
import hashlib
import json
import math
import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.descriptors import limited_descriptors
from tests.server.monitoring.http_client import Got, get
from tests.server.nodes import CLIENT, CREATE_TOPICS, MemoryStore, RunningNode, running_node, until

from tidegate.errors import ConfigError
from tidegate.gateway.shared_mutations import SharedMutations
from tidegate.quota import DEFAULT, QuotaEntity
from tidegate.server.monitoring.entities import MAX_ENTITIES, MAX_NAME_CHARS, OTHERS
from tidegate.server.monitoring.metrics_listener import MetricsListener
from tidegate.server.settings.metrics_settings import MetricsConfig, read_token
from tidegate.testing import ManualClock

SECRET = "0123456789abcdef-secret"
_SAMPLE = re.compile(r'([a-z_0-9]+)(?:\{((?:[a-zA-Z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')
_LABEL = re.compile(r'([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"')
Scenario = Callable[[RunningNode, int], Awaitable[None]]


def serve(
    directory: Path, scenario: Scenario, *, token: str | None = None, settings: dict[str, str] | None = None
) -> None:
    """Run a scenario with a node whose clock stands still, and the port of its metrics."""
    token_file = directory / "token"
    if token is not None:
        token_file.write_text(token + "\n")

    async def main() -> None:
        async with running_node(directory, MemoryStore(), settings or {}, clock=ManualClock()) as node:
            config = MetricsConfig(host="127.0.0.1", port=0, token_file=None if token is None else token_file)
            listener = MetricsListener.start(node.node, config)
            try:
                async with asyncio.timeout(30):
                    await scenario(node, int(listener.url.rpartition(":")[2].strip("/")))
            finally:
                listener.close()
                await asyncio.sleep(0.01)

    asyncio.run(main())


def samples(got: Got) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the numbers of a response by name and labels; fails where a line has another form or comes twice."""
    assert got.status == 200
    assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    named: list[str] = []
    for line in got.body.decode().removesuffix("\n").split("\n"):
        if line.startswith("# TYPE "):
            named.append(line.split()[2])
        if not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == named[-1], "the lines of a name are together"
            key = match[1], frozenset(_LABEL.findall(match[2] or ""))
            assert key not in found, line
            found[key] = float(match[3])
    assert len(set(named)) == len(named)
    return found


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return the key of a number."""
    return name, frozenset(labels.items())


async def throttled_producer(node: RunningNode) -> int:
    """Produce under a small quota; return the throttle time."""
    client = await node.connect()
    await client.alter(CLIENT, "producer_byte_rate", 100.0)
    client.send_produce(padding=2000)
    throttle_ms: int = (await client.receive())[1]["throttle_time_ms"]
    assert throttle_ms > 500
    await until(lambda: len(node.node.throttles()) == 1)
    return throttle_ms


def test_metrics_have_the_names_of_the_jmx_exporter(tmp_path: Path) -> None:
    """Rate and throttle time of a client are the engine's; its limit and utilization are beside them."""

    async def scenario(node: RunningNode, port: int) -> None:
        throttle_ms = await throttled_producer(node)
        found = samples(await get(port, "/metrics"))
        rate = node.node.managers.produce.peek("ANONYMOUS", "c1", node.node.clock.now_ms())
        assert rate > 200.0
        assert found[of("kafka_server_produce_byte_rate", client_id="c1")] == rate
        assert found[of("kafka_server_produce_throttle_time", client_id="c1")] == throttle_ms
        assert found[of("kafka_server_produce_queue_size")] == 1.0
        client = {"quota_type": "Produce", "client_id": "c1"}
        assert found[of("tidegate_quota_limit", **client)] == 100.0
        assert found[of("tidegate_quota_utilization_ratio", **client)] == rate / 100.0
        assert found[of("tidegate_quota_entities", quota_type="Produce")] == 1.0
        assert found[of("tidegate_quota_entities_omitted", quota_type="Produce")] == 0.0
        listener = {"listener": "PLAINTEXT", "networkProcessor": "0"}
        assert found[of("kafka_server_socket_server_metrics_connection_count", **listener)] == 1.0
        requests = "kafka_network_requestmetrics_"
        assert found[of(f"{requests}requests_total", request="Produce", version="9")] == 1.0
        assert found[of(f"{requests}throttletimems_count", request="Produce")] == 1.0
        assert found[of(f"{requests}throttletimems", request="Produce", quantile="0.99")] == throttle_ms
        assert of("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent") in found
        assert of("kafka_network_socketserver_networkprocessoravgidle_percent") in found

    serve(tmp_path, scenario)


def test_what_the_page_names_is_served(tmp_path: Path) -> None:
    """Every metric of docs/monitoring.md, once every kind of quota is in use."""

    async def scenario(node: RunningNode, port: int) -> None:
        client = await node.connect()
        for key in (
            "producer_byte_rate",
            "consumer_byte_rate",
            "request_percentage",
            "controller_mutation_rate",
        ):
            await client.alter(CLIENT, key, 1e9)
        client.send_produce(padding=1)
        client.send_fetch(max_bytes=1)
        for _ in range(2):
            await client.receive()
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        await client.ask(19, 7, {"topics": [topic], "timeout_ms": 1000, "validate_only": False})
        served = {name for name, _ in samples(await get(port, "/metrics"))}
        page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text(encoding="utf-8")
        named = set(re.findall(r"`((?:kafka|tidegate)_[a-z_]+)`", page)) - {"tidegate_"}
        assert len(named) > 12
        assert named - served == set()

    serve(tmp_path, scenario)


def test_a_scrape_changes_nothing(tmp_path: Path) -> None:
    """Neither the state of a sensor nor the next throttle time, whatever is asked for and however often."""

    async def scenario(node: RunningNode, port: int) -> None:
        await throttled_producer(node)
        produce, now_ms = node.node.managers.produce, node.node.clock.now_ms()
        before = [state for _, _, state in produce.snapshots(lambda: now_ms)]
        for path in (
            "/metrics",
            "/entities",
            "/explain?client-id=c1",
            "/explain?user=x&client-id=y",
            "/",
        ) * 3:
            assert (await get(port, path)).status == 200
        assert [state for _, _, state in produce.snapshots(lambda: now_ms)] == before
        assert len(produce.sensors) == 1

    serve(tmp_path, scenario)


def test_entities_say_who_is_throttled_and_until_when(tmp_path: Path) -> None:
    """Limit, rate, utilization, throttle time, muted connections and the reason; throttled ones first."""

    async def scenario(node: RunningNode, port: int) -> None:
        now_ms = node.node.clock.now_ms()
        throttle_ms = await throttled_producer(node)
        produce = node.node.managers.produce
        produce.update_quota(QuotaEntity(client_id=DEFAULT), 10.0)
        produce.record("ANONYMOUS", "zealous", 5000.0, now_ms)
        document = json.loads((await get(port, "/entities")).body)
        first, second = document["entities"]
        assert (document["format"], document["node_id"], document["time_ms"]) == (1, 1, now_ms)
        assert document["quota_types"]["Produce"] == {"entities": 2, "omitted": 0}
        rate = produce.peek("ANONYMOUS", "c1", now_ms)
        assert first == {
            "quota_type": "Produce", "user": "", "client_id": "c1", "unit": "bytes per second", "scope": "broker",
            "observed": False, "limit": 100.0, "rate": rate, "utilization": rate / 100.0,
            "throttle_time_ms": throttle_ms, "throttled_connections": 1,
            "throttled_until_ms": now_ms + throttle_ms, "reason": "produce quota exceeded",
        }  # fmt: skip
        assert (second["client_id"], second["throttled_connections"], second["reason"]) == (
            "zealous",
            0,
            None,
        )
        assert second["utilization"] > first["utilization"]

    serve(tmp_path, scenario)


def test_scope_of_mutations_is_the_cluster_where_gateways_share_them(tmp_path: Path) -> None:
    """In the list, and in the explanation; without gateways it is the broker."""

    async def scenario(node: RunningNode, port: int) -> None:
        mutations, now_ms = node.node.managers.controller_mutation, node.node.clock.now_ms()
        mutations.update_quota(QuotaEntity(client_id=DEFAULT), 10.0)
        scopes = []
        for client_id in ("alone", "shared"):
            mutations.new_quota("", client_id, CREATE_TOPICS, 6, now_ms).record(5.0, now_ms)
            entities = json.loads((await get(port, "/entities")).body)["entities"]
            explained = json.loads((await get(port, f"/explain?client-id={client_id}")).body)["quotas"]
            for each in (*entities, *explained):
                if each["quota_type"] == "ControllerMutation" and each["utilization"]:
                    scopes.append(each["scope"])
            SharedMutations("gateway").add_node(node.node.managers)
        assert sorted(scopes) == ["broker"] * 3 + ["cluster"] * 2

    serve(tmp_path, scenario)


def test_an_observed_client_is_marked(tmp_path: Path) -> None:
    """It is over its limit, and has a throttle time, but no connection is throttled; others are not marked."""

    async def scenario(node: RunningNode, port: int) -> None:
        produce, now_ms = node.node.managers.produce, node.node.clock.now_ms()
        produce.update_quota(QuotaEntity(client_id=DEFAULT), 100.0)
        client = await node.connect()
        client.send_produce(padding=2000)
        assert (await client.receive())[1]["throttle_time_ms"] == 0
        produce.record("ANONYMOUS", "zealous", 5000.0, now_ms)
        entities = json.loads((await get(port, "/entities")).body)["entities"]
        shown = {
            entity["client_id"]: (entity["observed"], entity["throttled_connections"], entity["reason"])
            for entity in entities
        }
        assert shown == {"c1": (True, 0, None), "zealous": (False, 0, None)}
        assert min(entity["throttle_time_ms"] for entity in entities) > 500
        for name, observed in (("c1", True), ("zealous", False), ("unknown", False)):
            quotas = json.loads((await get(port, f"/explain?client-id={name}")).body)["quotas"]
            assert {quota["observed"] for quota in quotas} == {observed}

    serve(tmp_path, scenario, settings={"tidegate.quota.observe": "client-id=c1"})


def test_an_explanation_has_the_reason_for_each_level(tmp_path: Path) -> None:
    """The quota of a user applies; that of its client id does not, because it is less specific."""

    async def scenario(node: RunningNode, port: int) -> None:
        produce, now_ms = node.node.managers.produce, node.node.clock.now_ms()
        produce.update_quota(QuotaEntity(user="O=A"), 50.0)
        produce.update_quota(QuotaEntity(client_id="c1"), 10.0)
        produce.record("O=A", "c1", 250.0, now_ms)
        document = json.loads((await get(port, "/explain?user=O%3DA&client-id=c1")).body)
        quotas = {quota["quota_type"]: quota for quota in document["quotas"]}
        found = quotas["Produce"]
        assert (found["entity"], found["limit"], found["rate"]) == ({"user": "O=A"}, 50.0, 25.0)
        assert (found["utilization"], found["shared_by"], found["by_callback"]) == (
            0.5,
            {"user": "O=A"},
            False,
        )
        assert len(found["levels"]) == 8
        reasons = {json.dumps(level["entity"]): level["reason"] for level in found["levels"]}
        assert reasons['{"user": "O=A"}'] == "applies"
        assert reasons['{"client-id": "c1"}'] == "a more specific quota applies"
        assert reasons['{"user": "O=A", "client-id": null}'] == "no quota is defined"
        assert (quotas["Fetch"]["limit"], quotas["Fetch"]["utilization"]) == (None, None)
        assert len(produce.sensors) == 1, "an explanation makes no sensor"

    serve(tmp_path, scenario)


def test_most_entities_are_added_up(tmp_path: Path) -> None:
    """Those that use most have lines; the sum of all lines is the sum of all clients."""

    async def scenario(node: RunningNode, port: int) -> None:
        produce, now_ms = node.node.managers.produce, node.node.clock.now_ms()
        produce.update_quota(QuotaEntity(client_id=DEFAULT), 1000.0)
        for number in range(MAX_ENTITIES + 40):
            produce.record("ANONYMOUS", f"c{number}", 10.0 * (number + 1), now_ms)
        found = samples(await get(port, "/metrics"))
        rates = {
            labels: rate for (name, labels), rate in found.items() if name == "kafka_server_produce_byte_rate"
        }
        others = rates.pop(frozenset({("user", OTHERS), ("client_id", OTHERS)}))
        names = {dict(labels)["client_id"] for labels in rates}
        assert names == {f"c{number}" for number in range(40, MAX_ENTITIES + 40)}
        assert others == pytest.approx(sum(number + 1 for number in range(40)))
        assert found[of("tidegate_quota_entities_omitted", quota_type="Produce")] == 40.0
        document = json.loads((await get(port, "/entities")).body)
        assert document["quota_types"]["Produce"] == {"entities": MAX_ENTITIES + 40, "omitted": 40}
        assert document["entities"][0]["client_id"] == f"c{MAX_ENTITIES + 39}"

    serve(tmp_path, scenario)


def test_a_throttled_entity_is_listed_first(tmp_path: Path) -> None:
    """Even if many others use more of their quota while it waits."""

    async def scenario(node: RunningNode, port: int) -> None:
        await throttled_producer(node)
        produce, now_ms = node.node.managers.produce, node.node.clock.now_ms()
        produce.update_quota(QuotaEntity(client_id=DEFAULT), 0.01)
        for number in range(MAX_ENTITIES + 1):
            produce.record("ANONYMOUS", f"x{number}", 5000.0, now_ms)
        document = json.loads((await get(port, "/entities")).body)
        assert document["entities"][0]["client_id"] == "c1"
        assert document["quota_types"]["Produce"]["omitted"] == 2
        assert of("kafka_server_produce_byte_rate", client_id="c1") in samples(await get(port, "/metrics"))

    serve(tmp_path, scenario)


def test_any_name_of_a_client_fits_on_a_line(tmp_path: Path) -> None:
    """Escaped, cut where it is long, and still different from every other."""

    async def scenario(node: RunningNode, port: int) -> None:
        produce, now_ms = node.node.managers.produce, node.node.clock.now_ms()
        produce.update_quota(QuotaEntity(client_id=DEFAULT), 1000.0)
        odd = ['a"b\\c\nd\r', "ü\u2028\x00", "x" * 32_000 + "1", "x" * 32_000 + "2", "</script>"]
        for name in odd:
            produce.record("ANONYMOUS", name, 10.0, now_ms)
        got = await get(port, "/metrics")
        names = {
            dict(labels)["client_id"]
            for name, labels in samples(got)
            if name == "kafka_server_produce_byte_rate"
        }
        assert len(names) == len(odd)
        assert r'client_id="a\"b\\c\nd' in got.body.decode()
        assert max(map(len, names)) < MAX_NAME_CHARS + 20
        document = json.loads((await get(port, "/entities")).body)
        assert odd[0] in {entity["client_id"] for entity in document["entities"]}

    serve(tmp_path, scenario)


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    """A limit of 0 and of NaN: no document has a NaN or an infinity."""

    async def scenario(node: RunningNode, port: int) -> None:
        produce, now_ms = node.node.managers.produce, node.node.clock.now_ms()
        for name, bound in (("zero", 0.0), ("nan", math.nan)):
            produce.update_quota(QuotaEntity(client_id=name), bound)
            produce.record("ANONYMOUS", name, 10.0, now_ms)

        def refuse(text: str) -> Any:
            raise AssertionError(text)

        for path in ("/entities", "/explain?client-id=zero", "/explain?client-id=nan"):
            json.loads((await get(port, path)).body, parse_constant=refuse)
        found = samples(await get(port, "/metrics"))
        labels = {"quota_type": "Produce", "client_id": "zero"}
        assert found[of("tidegate_quota_utilization_ratio", **labels)] == math.inf
        assert of("tidegate_quota_limit", quota_type="Produce", client_id="nan") not in found

    serve(tmp_path, scenario)


def test_a_token_protects_data_and_not_the_page(tmp_path: Path) -> None:
    """The page has no data; it asks for the token itself."""

    async def scenario(node: RunningNode, port: int) -> None:
        assert (await get(port, "/")).status == 200
        for path in ("/metrics", "/entities", "/explain?user=a", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {SECRET}"}):
                got = await get(port, path, **headers)
                assert (got.status, "www-authenticate" in got.headers) == (401, True)
                assert SECRET.encode() not in got.body
        got = await get(port, "/metrics", Authorization=f"bearer {SECRET}", Host="metrics.example.com")
        assert got.status == 200

    serve(tmp_path, scenario, token=SECRET)


def test_a_foreign_host_name_is_refused_without_a_token(tmp_path: Path) -> None:
    """A page of another site may point its name at 127.0.0.1."""

    async def scenario(node: RunningNode, port: int) -> None:
        for host, status in (
            ("evil.example", 403),
            ("localhost:9404", 200),
            ("[::1]:9404", 200),
            ("10.0.0.5", 200),
        ):
            assert (await get(port, "/entities", Host=host)).status == status, host

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("target", "status", "hint"),
    [
        ("/nothing", 404, "/metrics"),
        ("/explain", 400, "/explain?user=U&client-id=C"),
        ("/explain?usr=x", 400, "/explain?user=U&client-id=C"),
    ],
)
def test_errors_have_hints(tmp_path: Path, target: str, status: int, hint: str) -> None:
    """As JSON."""

    async def scenario(node: RunningNode, port: int) -> None:
        got = await get(port, target)
        assert got.status == status
        assert hint in json.loads(got.body)["hint"]

    serve(tmp_path, scenario)


def test_the_page_may_run_its_own_script_alone(tmp_path: Path) -> None:
    """Its policy names the digest of its script and its style, and no other source of code."""

    async def scenario(node: RunningNode, port: int) -> None:
        got = await get(port, "/")
        policy = got.headers["content-security-policy"]
        for kind in ("script", "style"):
            (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), got.body, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}'" in policy
        assert "unsafe" not in policy
        assert b"innerHTML" not in got.body
        assert not re.search(rb"(?:src|href)=.(?:https?:)?//", got.body)

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    "content", ["", "short", "x" * 2000, "has a blank in it, so that it is none", "\xff" * 20]
)
def test_a_token_that_cannot_be_used_is_refused(tmp_path: Path, content: str) -> None:
    """Without repeating it."""
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ConfigError) as error:
        read_token(path)
    assert not content or content not in str(error.value)
    assert "openssl rand" in str(error.value.hint)


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the reason."""
    with pytest.raises(ConfigError, match="No such file"):
        read_token(tmp_path / "none")


def test_metrics_are_served_while_descriptors_are_used_up(tmp_path: Path) -> None:
    """Connections of Kafka clients are refused then: it is when an operator looks."""

    async def scenario(node: RunningNode, port: int) -> None:
        with limited_descriptors() as descriptors, ExitStack() as stack:
            limit = descriptors.lowest_free() * 4 // 3 + 80  # of which a quarter is kept for logs
            descriptors.limit(limit)
            node.node.listeners["PLAINTEXT"].start()  # it looks at the limit, as does this one:
            late = MetricsListener.start(node.node, MetricsConfig(host="127.0.0.1", port=0, token_file=None))
            stack.callback(late.close)
            descriptors.use_up_to(limit - limit // 4)
            assert await (await node.connect()).closed()
            found = samples(await get(int(late.url.rpartition(":")[2].strip("/")), "/metrics"))
            assert of("tidegate_quota_entities", quota_type="Produce") in found

    serve(tmp_path, scenario)
