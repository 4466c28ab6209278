"""A gateway and its Kafka are killed under load: nothing that was acknowledged is lost or doubled."""

import time

from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.killing import GATEWAY, KAFKA, survive
from tests.gateway.raw_client import RawClient

ANSWERED_WITHIN_S = 1.0


def test_kills_lose_and_double_nothing(tmp_path):
    """Of a gateway twice and of Kafka once; then, with Kafka gone, a client's connection closes at once."""
    kafka = KafkaBench("kafka", tmp_path / "killed-kafka", java_options=SHORT_LIVED)
    kafka.start()
    gateway = GatewayProcess(tmp_path / "gateway", kafka.address)
    try:
        survive(kafka, gateway.start(), (GATEWAY, KAFKA, GATEWAY))
        kafka.kill()
        begun = time.monotonic()
        with RawClient(gateway.port, "late") as client:
            client.socket.settimeout(ANSWERED_WITHIN_S)
            client.send(3, 9, _NO_TOPICS)
            assert client.socket.recv(1) == b""
        assert time.monotonic() - begun < ANSWERED_WITHIN_S
        assert gateway.process.poll() is None
    finally:
        gateway.close()
        kafka.stop()


_NO_TOPICS = {
    "topics": [],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
