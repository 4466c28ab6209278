"""Sixty kills of a gateway and its Kafka under load: nothing that was acknowledged is lost or doubled.

`TIDEGATE_KILLS=20` in the environment: so many instead.
"""

import os
import random
import time

from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.killing import GATEWAY, KAFKA, survive

KILLS = int(os.environ.get("TIDEGATE_KILLS", "60"))
OF_KAFKA = KILLS // 4


def test_kills_lose_and_double_nothing(tmp_path):
    """Three of four kills are of the gateway, in an order of chance."""
    seed = time.time_ns()
    print(f"seed {seed}")
    kills = [KAFKA] * OF_KAFKA + [GATEWAY] * (KILLS - OF_KAFKA)
    random.Random(seed).shuffle(kills)
    kafka = KafkaBench("kafka", tmp_path / "killed-kafka", java_options=SHORT_LIVED)
    kafka.start()
    gateway = GatewayProcess(tmp_path / "gateway", kafka.address)
    try:
        survive(kafka, gateway.start(), kills)
    finally:
        gateway.close()
        kafka.stop()
