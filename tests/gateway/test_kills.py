"""A gateway and its Kafka are killed under load: nothing that was acknowledged is lost or doubled."""

import contextlib
import time

from tests.gateway.killing import GATEWAY, KAFKA, kafka_and_gateway, survive
from tests.gateway.raw_client import RawClient, is_closed

from tidegate.api_keys import METADATA

ANSWERED_WITHIN_S = 1.0


def test_kills_lose_and_double_nothing(tmp_path, lateness):
    """The gateway is killed, and Kafka is; with Kafka gone, a client's connection closes at once."""
    with kafka_and_gateway(tmp_path) as (kafka, gateway):
        survive(kafka, gateway, (KAFKA, GATEWAY))
        kafka.kill()
        begun = time.monotonic()
        with RawClient(gateway.port, "late") as client:
            with contextlib.suppress(ConnectionError):  # closed before the request was sent
                client.send(METADATA, 9, _NO_TOPICS)
            assert is_closed(client.socket, 10 * ANSWERED_WITHIN_S)
        assert lateness.elapsed_s(begun) < ANSWERED_WITHIN_S
        assert gateway.process.poll() is None


_NO_TOPICS = {
    "topics": [],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
