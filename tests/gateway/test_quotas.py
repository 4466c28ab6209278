"""Quotas of a gateway before Kafka: what only a gateway can get wrong. The rest is in `test_as_a_node.py`."""

import time
from collections.abc import Iterator

import pytest
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.raw_client import RawClient, fetched
from tests.waiting import wait_until

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_PARTITIONS,
    DELETE_TOPICS,
    FETCH,
)
from tidegate.error_codes import (
    INVALID_REQUEST,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

REFUSED = THROTTLING_QUOTA_EXCEEDED
NO_ID, UNKNOWN_ID = "00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-0000000000fe"
CHANGE = {"timeout_ms": 10_000, "validate_only": False}
BRIEF_MS = 20
LATE_MS = 100
SESSIONS = 40  # that the broker keeps (`conftest`)


@pytest.fixture(scope="module")
def brief_gateway(kafka, tmp_path_factory) -> Iterator[GatewayProcess]:
    """Return a gateway whose throttles are brief."""
    options = ("--override", f"tidegate.quota.throttle.max.ms={BRIEF_MS}")
    process = GatewayProcess(tmp_path_factory.mktemp("brief"), kafka.address, options).start()
    yield process
    process.close()


@pytest.mark.alone
def test_the_longest_throttle_time_wins(kafka, gateway, topic, unique):
    """Kafka's own quota and the gateway's are both in force; the client is told the longer time, and waits for it."""
    with RawClient(kafka.port, "admin") as own, RawClient(gateway.port, "admin") as ours:
        for kafkas, gateways in ((5_000.0, None), (None, 5_000.0), (4_500.0, 5_000.0), (5_000.0, 4_500.0)):
            client_id = f"{unique}-{kafkas}-{gateways}"
            own.set_quotas(client_id, producer_byte_rate=kafkas)
            ours.set_quotas(client_id, producer_byte_rate=gateways)
            wait_until(lambda of=client_id, value=kafkas: own.quota(of) == value)  # in force then
            with RawClient(gateway.port, client_id) as client:
                # Of Kafka's window of 11 s nothing is over: rate = size / 10 s (B§2).
                told = client.produce(topic, 51_500)["throttle_time_ms"]
                lowest = min(each for each in (kafkas, gateways) if each)
                expected = (5_160 - lowest) / lowest * 10_000
                assert abs(told - expected) < LATE_MS, (kafkas, gateways, told, expected)
                begun = time.monotonic()
                assert client.produce(topic, 1)["throttle_time_ms"] >= 0
                assert (time.monotonic() - begun) * 1000 > told - LATE_MS


def test_throttled_responses_of_every_produce_version_are_told_so(gateway, topic, unique):
    """The throttle time is in its place in every version, of one partition or several, with errors or without."""
    with RawClient(gateway.port, "admin") as admin:
        for version in range(3, 13):
            for name, sizes in ((topic, (2000,)), (topic, (2000, 1)), ("no-such-topic", (2000,))):
                client_id = f"{unique}-{version}-{name}-{len(sizes)}"
                admin.set_quotas(client_id, producer_byte_rate=190.0)
                with RawClient(gateway.port, client_id) as client:
                    answer = client.produce(name, *sizes, version=version)
                assert answer["throttle_time_ms"] > 0, (version, name, sizes)
                errors = [
                    each["error_code"] for each in answer["responses"][0].get("partition_responses", [])
                ]
                assert errors == {1: [0 if name == topic else 3], 2: [0, 3]}[len(sizes)], answer


def test_fetches_are_limited_as_kafka_does(gateway, topic, unique):
    """A fetch is given at most what the quota allows in a window, though it asks for more."""
    with RawClient(gateway.port, unique) as client:
        for _ in range(20):
            client.produce(topic, 10_000)
        client.set_quotas(unique, consumer_byte_rate=5_000.0)
        answer = client.fetch(topic)
    # 10 s of 5,000 bytes; Kafka reads a batch more than fits, or none.
    assert 0 < answer["frame_bytes"] < 62_000


def records_of(answer: dict) -> int:
    """Return the bytes of records in the answer to a Fetch."""
    return sum(len(part["records"] or b"") for each in answer["responses"] for part in each["partitions"])


def begun_session(client: RawClient, topic: str) -> int:
    """Return the id of a new session. The broker's places are divided: some tries may find their part full."""
    for _ in range(20):
        answer = client.ask(FETCH, 11, fetched({topic: {0: 0}}, session_epoch=0, max_wait_ms=0))
        if answer["session_id"]:
            return answer["session_id"]
    raise AssertionError("the broker has no room for a session")


def test_withheld_full_fetches_leave_no_session(brief_gateway, topic, unique):
    """The client learns of no session from a withheld response, and the broker's is closed by its next request."""
    begin = fetched({topic: {0: 0}}, session_epoch=0)
    with RawClient(brief_gateway.port, unique) as client:
        client.produce(topic, 12_000)
        client.set_quotas(unique, consumer_byte_rate=100)
        for _ in range(SESSIONS + 10):
            withheld = client.ask(FETCH, 11, begin)
            assert withheld["throttle_time_ms"] == BRIEF_MS
            assert (withheld["responses"], withheld["session_id"]) == ([], 0)
        client.set_quotas(unique, consumer_byte_rate=None)
        assert begun_session(client, topic)


def test_an_incremental_session_goes_on_after_a_withheld_response(brief_gateway, topic, unique):
    """What is withheld of a session comes with a later response of it; its epochs follow each other."""
    with RawClient(brief_gateway.port, unique) as client:
        session_id = begun_session(client, topic)
        client.produce(topic, 12_000)
        client.set_quotas(unique, consumer_byte_rate=1_000.0)
        withheld = client.ask(FETCH, 11, fetched({}, session_id=session_id, session_epoch=1))
        assert withheld["throttle_time_ms"] > 0
        assert (withheld["responses"], withheld["session_id"], withheld["error_code"]) == ([], session_id, 0)
        client.set_quotas(unique, consumer_byte_rate=None)
        given = client.ask(FETCH, 11, fetched({}, session_id=session_id, session_epoch=2))
        assert records_of(given) > 12_000
        assert given["error_code"] == 0


def test_an_error_of_a_session_is_not_withheld(gateway, topic, unique):
    """A throttled client learns that its session is gone."""
    with RawClient(gateway.port, unique) as client:
        client.set_quotas(unique, consumer_byte_rate=1.0)
        answer = client.ask(FETCH, 11, fetched({}, session_id=12345, session_epoch=7))
        assert answer["throttle_time_ms"] > 0
        assert answer["error_code"] == 70  # FETCH_SESSION_ID_NOT_FOUND


def test_long_withheld_responses_are_drained(brief_gateway, topic, unique):
    """A long response that is not forwarded does not disturb the next ones of the connection."""
    with RawClient(brief_gateway.port, unique) as client:
        for _ in range(8):
            client.produce(topic, 900_000)
        client.set_quotas(unique, consumer_byte_rate=300_000)
        for _ in range(4):
            withheld = client.fetch(topic)  # of 3 MB, and later a batch
            assert withheld["throttle_time_ms"] in (0, BRIEF_MS)
            assert bool(withheld["responses"]) == (not withheld["throttle_time_ms"])
        assert withheld["throttle_time_ms"]
        client.set_quotas(unique, consumer_byte_rate=None)
        assert records_of(client.fetch(topic)) > 7_200_000


def wait_for_topics(client: RawClient, *names: str) -> dict[str, str]:
    """Return the ids of topics when the broker shows them, some ms after it has created them."""
    wait_until(lambda: len(client.topic_ids(*names)) == len(names))
    return client.topic_ids(*names)


def test_a_strict_request_is_admitted_in_part(gateway, unique):
    """Topics that the quota refuses get error 89 beside those that Kafka creates, and has, in the request's order."""
    has, made, *refused = (f"{unique}-{letter}" for letter in "eabc")
    with RawClient(gateway.port, "other") as other:
        other.create_topics((has, 1))
        wait_for_topics(other, has)
    with RawClient(gateway.port, unique) as client:
        client.set_quotas(unique, controller_mutation_rate=1.0)
        answer = client.create_topics((made, 12), (refused[0], 1), (has, 1), (refused[1], 1))
        found = [(each["name"], each["error_code"]) for each in answer["topics"]]
        assert found == [(made, 0), (refused[0], REFUSED), (has, TOPIC_ALREADY_EXISTS), (refused[1], REFUSED)]
        assert 0 < answer["throttle_time_ms"] < 5_000
        assert answer["topics"][1]["configs"] == []
    with RawClient(gateway.port, "other") as other:
        wait_for_topics(other, f"{unique}-a")
        assert list(other.topic_ids(f"{unique}-a", f"{unique}-b")) == [f"{unique}-a"]


def test_an_older_request_is_admitted_whole_and_throttled(gateway, unique):
    """A permissive version creates all topics; the client waits afterwards."""
    with RawClient(gateway.port, unique) as client:
        client.set_quotas(unique, controller_mutation_rate=1.0)
        answer = client.create_topics((f"{unique}-a", 10), (f"{unique}-b", 5), version=5)
        assert [each["error_code"] for each in answer["topics"]] == [0, 0]
        assert answer["throttle_time_ms"] > 0


def test_deletions_by_name_and_id_and_added_partitions_cost_permits(gateway, unique):
    """Each costs as many permits as partitions go or come; what is refused stays."""
    names = [f"{unique}-{letter}" for letter in "abc"]
    with RawClient(gateway.port, "other") as other:
        assert [each["error_code"] for each in other.create_topics(*((name, 4) for name in names))["topics"]] == [
            0, 0, 0,
        ]  # fmt: skip
        ids = wait_for_topics(other, *names)
    with RawClient(gateway.port, unique) as client:
        client.set_quotas(unique, controller_mutation_rate=0.5)
        grown = client.ask(
            CREATE_PARTITIONS,
            3,
            {
                **CHANGE,
                "topics": [{"name": names[0], "count": 9, "assignments": None}],
            },
        )
        assert [each["error_code"] for each in grown["results"]] == [0]
        # 5 of 0.5 * 10 s permits are used: a topic more is admitted, which leaves the bucket below zero.
        deleted = client.ask(
            DELETE_TOPICS,
            6,
            {
                "topics": [
                    {"name": names[1], "topic_id": NO_ID},
                    {"name": None, "topic_id": ids[names[2]]},
                    {"name": f"{unique}-none", "topic_id": NO_ID},
                ],
                "timeout_ms": 10_000,
            },
        )
        found = {each["name"] or each["topic_id"]: each["error_code"] for each in deleted["responses"]}
        assert found == {names[1]: 0, ids[names[2]]: REFUSED, f"{unique}-none": 3}
        assert deleted["throttle_time_ms"] > 0
    with RawClient(gateway.port, "other") as other:
        by_id = other.ask(
            DELETE_TOPICS,
            6,
            {"topics": [{"name": None, "topic_id": ids[names[2]]}], "timeout_ms": 10_000},
        )
        assert [each["error_code"] for each in by_id["responses"]] == [0]
        wait_until(lambda: list(other.topic_ids(*names)) == [names[0]])


def test_topics_that_cannot_be_changed_cost_no_permits(gateway, unique):
    """As at a broker: topics that are named twice, that exist or that do not exist are refused and charged nothing."""
    names = [f"{unique}-{letter}" for letter in "abc"]
    with RawClient(gateway.port, "other") as other:
        other.create_topics(*((name, 50) for name in names))
        ids = wait_for_topics(other, *names)
    with RawClient(gateway.port, unique) as client:
        client.set_quotas(unique, controller_mutation_rate=0.1)
        for _ in range(2):  # a single one of these charges would refuse the next
            made = client.create_topics((names[0], 50), (f"{unique}-d", 50), (f"{unique}-d", 50))
            assert {(each["name"], each["error_code"]) for each in made["topics"]} == {
                (names[0], TOPIC_ALREADY_EXISTS),
                (f"{unique}-d", INVALID_REQUEST),
            }
            twice = {"name": names[0], "count": 100, "assignments": None}
            grown = client.ask(CREATE_PARTITIONS, 3, {**CHANGE, "topics": [twice, twice]})
            assert {each["error_code"] for each in grown["results"]} == {INVALID_REQUEST}
            deleted = client.ask(
                DELETE_TOPICS,
                6,
                {
                    **CHANGE,
                    "topics": [
                        {"name": names[1], "topic_id": NO_ID},
                        {"name": names[1], "topic_id": NO_ID},
                        {"name": names[2], "topic_id": ids[names[2]]},
                        {"name": f"{unique}-none", "topic_id": NO_ID},
                        {"name": None, "topic_id": UNKNOWN_ID},
                        {"name": names[0], "topic_id": NO_ID},
                        {"name": None, "topic_id": ids[names[0]]},
                    ],
                },
            )
            assert {each["error_code"] for each in deleted["responses"]} == {
                INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
            }  # fmt: skip
            assert deleted["throttle_time_ms"] == 0
        assert list(client.topic_ids(*names)) == names
        assert client.create_topics((f"{unique}-e", 1))["topics"][0]["error_code"] == 0


def test_validation_costs_permits_in_exact_mode_only(gateway, new_gateway, unique):
    """As at `tidegate serve`: what only validates is free, unless Kafka is followed exactly."""
    codes = []
    for each in (gateway, new_gateway("--override", "tidegate.kafka.exact=true")):
        with RawClient(each.port, unique) as client:
            client.set_quotas(unique, controller_mutation_rate=0.1)
            for _ in range(2):
                made = client.create_topics((f"{unique}-a", 50), validate_only=True)
                codes.append(made["topics"][0]["error_code"])
    assert codes == [0, 0, 0, REFUSED]


def test_request_percentage_throttles(gateway, topic, unique):
    """A client that uses more of the gateway's time than its share waits."""
    with RawClient(gateway.port, unique) as client:
        client.set_quotas(unique, request_percentage=0.001)
        told = max(client.fetch(topic, max_wait_ms=0)["throttle_time_ms"] for _ in range(3))
        assert told > 0


def test_observed_clients_are_not_throttled(new_gateway, kafka, unique, create_topic, lateness):
    """In observe mode the record has what would have been, and no client waits or is limited."""
    gateway = new_gateway("--override", "tidegate.quota.observe=all")
    topic = create_topic(kafka, unique)
    with RawClient(gateway.port, unique) as client:
        client.set_quotas(
            unique, producer_byte_rate=100.0, consumer_byte_rate=100.0, controller_mutation_rate=0.1
        )
        begun = time.monotonic()
        for _ in range(5):
            assert client.produce(topic, 10_000)["throttle_time_ms"] == 0
        answer = client.fetch(topic)
        assert answer["throttle_time_ms"] == 0
        assert records_of(answer) > 50_000
        for number in range(3):
            made = client.create_topics((f"{unique}-{number}", 2))
            assert (made["topics"][0]["error_code"], made["throttle_time_ms"]) == (0, 0)
        assert lateness.elapsed_s(begun) < 5


def test_connections_are_limited_by_address(new_gateway):
    """Beyond `max.connections.per.ip` a connection is closed at once, and a closed one makes room; Kafka sees none."""
    gateway = new_gateway("--override", "max.connections.per.ip=2")
    with RawClient(gateway.port, "one") as one, RawClient(gateway.port, "two") as two:
        assert one.topic_ids("x") is not None
        assert two.topic_ids("x") is not None
        with RawClient(gateway.port, "three") as three:
            assert three.socket.recv(1) == b""
    deadline = time.monotonic() + 10
    while True:
        try:
            with RawClient(gateway.port, "four") as four:
                assert four.topic_ids("x") is not None
            break
        except ConnectionError:
            assert time.monotonic() < deadline


BURST = 11  # connections that a rate of 1 admits at once: ten windows of a second, and one more


def connections_s(gateway: GatewayProcess) -> float:
    """Open `BURST` connections and two more, ask on each, and return how long the last two took, in seconds."""
    for number in range(BURST + 2):
        if number == BURST:
            begun = time.monotonic()
        with RawClient(gateway.port, "connects") as client:
            assert client.topic_ids("x") is not None
    return time.monotonic() - begun


def test_connections_are_created_at_the_rate_of_the_broker(new_gateway):
    """Beyond `max.connection.creation.rate` a connection is accepted later, and served then."""
    gateway = new_gateway("--override", "max.connection.creation.rate=1")
    assert connections_s(gateway) > 0.9


def test_connections_of_an_address_are_created_at_its_rate(gateway):
    """Beyond the quota of its address a connection is closed after a delay; others are served."""
    limited = "127.0.0.2"  # no other test's: the gateways before the shared Kafka share the quota
    with RawClient(gateway.port, "admin") as admin:
        entry = {
            "entity": [{"entity_type": "ip", "entity_name": limited}],
            "ops": [{"key": "connection_creation_rate", "value": 1.0, "remove": False}],
        }
        answer = admin.ask(ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
        assert [each["error_code"] for each in answer["entries"]] == [0]
        closed_s = []
        first = time.monotonic()
        for _ in range(BURST + 2):
            begun = time.monotonic()
            with RawClient(gateway.port, "connects", source=limited) as client:
                try:
                    assert client.topic_ids("x") is not None
                except ConnectionError:
                    # The first delay ends with the window of the burst; each of the others takes a whole window.
                    closed_s.append(time.monotonic() - (begun if closed_s else first))
        assert closed_s
        assert min(closed_s) > 0.5, closed_s
        assert admin.topic_ids("x") is not None
