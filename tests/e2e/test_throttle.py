"""KIP-219 over real sockets: the answer comes at once and says how long; then the connection is deaf so long."""

import time
from contextlib import closing

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import ThrottlingQuotaExceededError
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.consumer import FetchResponse
from tests.e2e.lateness import Lateness
from tests.e2e.left_sockets import MAY_LEAVE_SOCKETS
from tests.e2e.plain_client import FETCH_VERSION, PlainClient, fetch_request

pytestmark = MAY_LEAVE_SOCKETS

WINDOW_MS = 10_000  # (quota.window.num - 1) * quota.window.size.seconds, Kafka's defaults
AT_ONCE_S = 0.4
LATE_S = 0.6  # how much later than promised a shared machine may be


def burst_throttle_ms(*, size, bound):
    """Return how long one burst of `size` bytes on a fresh sensor is throttled.

    The rate is size / W, and X solves rate * W / (W + X) = bound. Follows: B§2, B§6.2.
    """
    return round((size / (WINDOW_MS / 1000) - bound) / bound * WINDOW_MS)


def alter(broker, entity, **values):
    """Set quotas on a connection of their own, as an administrator would."""
    with PlainClient(broker.port, "admin") as admin:
        admin.alter_quotas(entity, values)


def test_a_produce_is_answered_at_once_and_its_connection_is_deaf(broker, topic, unique):
    """The throttle time equals the formula to the millisecond, and the next answer waits that long."""
    alter(broker, {"client-id": unique}, producer_byte_rate=1000.0)
    with PlainClient(broker.port, unique) as client, Lateness() as lateness:
        started = time.monotonic()
        size = client.send_produce(topic, value_bytes=20_000)
        client.send_produce(topic, value_bytes=1)
        first = client.receive_produce()
        answered_s = lateness.elapsed_s(started)
        client.receive_produce()
        deaf_s, late_s = time.monotonic() - started, lateness.ms_since(started) / 1000
    expected_ms = burst_throttle_ms(size=size, bound=1000.0)
    assert 9_000 < expected_ms < 12_000
    assert first.throttle_time_ms == expected_ms
    assert answered_s < AT_ONCE_S
    assert expected_ms / 1000 <= deaf_s < expected_ms / 1000 + LATE_S + late_s


def test_acks_0_is_muted_too(broker, topic, unique):
    """A producer that wants no answers is held all the same."""
    alter(broker, {"client-id": unique}, producer_byte_rate=1000.0)
    with PlainClient(broker.port, unique) as client, Lateness() as lateness:
        started = time.monotonic()
        size = client.send_produce(topic, value_bytes=12_000, acks=0)
        client.send_produce(topic, value_bytes=1)
        client.receive_produce()
        deaf_s, late_s = time.monotonic() - started, lateness.ms_since(started) / 1000
    expected_s = burst_throttle_ms(size=size, bound=1000.0) / 1000
    assert expected_s <= deaf_s < expected_s + LATE_S + late_s


def test_a_quota_holds_from_the_next_request_on(broker, topic, unique):
    """Set, raised and removed over the wire, each at once for a connection that was there before."""
    with PlainClient(broker.port, unique) as client:

        def throttle_ms():
            client.send_produce(topic, value_bytes=11_000)
            return client.receive_produce().throttle_time_ms

        assert throttle_ms() == 0
        alter(broker, {"client-id": unique}, producer_byte_rate=1000.0)
        assert throttle_ms() > 0
        alter(broker, {"client-id": unique}, producer_byte_rate=1e9)
        assert throttle_ms() == 0
        alter(broker, {"client-id": unique}, producer_byte_rate=None)
        assert throttle_ms() == 0


def test_the_most_specific_quota_applies(broker, topic, unique):
    """A quota for user and client id beats the client id's own."""
    alter(broker, {"client-id": unique}, producer_byte_rate=1000.0)
    alter(broker, {"user": "ANONYMOUS", "client-id": unique}, producer_byte_rate=1e9)
    with PlainClient(broker.port, unique) as client:
        client.send_produce(topic, value_bytes=50_000)
        assert client.receive_produce().throttle_time_ms == 0


def fetch(client, topic):
    """Return the answer to a Fetch of partition 0 from its beginning."""
    return client.ask(fetch_request(topic), FetchResponse[FETCH_VERSION])


def test_a_throttled_fetch_is_empty_and_the_next_has_the_records(broker, topic, unique):
    """An answer over the quota is sent without records; after the wait the same records come."""
    with PlainClient(broker.port, f"{unique}-writer") as writer:
        writer.send_produce(topic, value_bytes=10_450)
        assert writer.receive_produce().responses[0].partition_responses[0].error_code == 0
    alter(broker, {"client-id": unique}, consumer_byte_rate=1000.0)
    with PlainClient(broker.port, unique) as client, Lateness() as lateness:
        asked = time.monotonic()
        refused = fetch(client, topic)
        assert refused.throttle_time_ms > 0
        assert refused.responses == []
        started = time.monotonic()
        given = fetch(client, topic)
        waited_s = time.monotonic() - started + lateness.ms_since(asked) / 1000
    assert waited_s >= refused.throttle_time_ms / 1000 - 0.05
    if given.throttle_time_ms:  # between 10 and 11 quotas the retry's moment decides (B§6.3.1)
        assert given.responses == []
    else:
        assert len(given.responses[0].partitions[0].records) > 10_450


def create(client, topic, partitions):
    """Return the error code and throttle time of one CreateTopics v6, which is strict."""
    topic_class = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest[6](
        topics=[topic_class(name=topic, num_partitions=partitions, replication_factor=1)], timeout_ms=5000
    )
    answer = client.ask(request, CreateTopicsResponse[6])
    return answer.topics[0].error_code, answer.throttle_time_ms


def test_partition_mutations_are_refused_with_89(broker, unique):
    """The first request is admitted whatever its size; the second is refused and says how long to wait."""
    alter(broker, {"client-id": unique}, controller_mutation_rate=1.0)
    with PlainClient(broker.port, unique) as client:
        assert create(client, f"{unique}-a", 20) == (0, 0)
        error, throttle_ms = create(client, f"{unique}-b", 1)
        assert error == ThrottlingQuotaExceededError.errno
        assert 500 < throttle_ms <= 10_000


def test_librdkafka_reports_the_throttle_time(broker, topic, unique):
    """confluent-kafka's throttle callback is told what the broker decided."""
    alter(broker, {"client-id": unique}, producer_byte_rate=50_000.0)
    told = []
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "client.id": unique,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    for _ in range(6):
        producer.produce(topic, bytes(100_000), partition=0)
    assert producer.flush(30) == 0
    assert max(told) > 0


def test_kafka_python_reports_the_throttle_time(broker, topic, unique):
    """kafka-python's produce-throttle-time-max metric is what the broker decided."""
    alter(broker, {"client-id": unique}, producer_byte_rate=50_000.0)
    with closing(KafkaProducer(bootstrap_servers=broker.address, client_id=unique)) as producer:
        for _ in range(6):
            producer.send(topic, bytes(100_000), partition=0).get(timeout=30)
        groups = producer.metrics().values()
    told_ms = max(group["throttle-time-max"] for group in groups if "throttle-time-max" in group)
    assert told_ms == pytest.approx(2_000, abs=1_500)
