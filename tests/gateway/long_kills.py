"""Sixty kills of a gateway and its Kafka under load: nothing that was acknowledged is lost or doubled.

`TIDEGATE_KILLS=20` in the environment: so many instead.
"""

import os
import random
import time

from tests.gateway.killing import GATEWAY, KAFKA, kafka_and_gateway, survive

KILLS = int(os.environ.get("TIDEGATE_KILLS", "60"))
OF_KAFKA = KILLS // 4


def test_kills_lose_and_double_nothing(tmp_path):
    """Three of four kills are of the gateway, in an order of chance."""
    seed = time.time_ns()
    print(f"seed {seed}")
    kills = [KAFKA] * OF_KAFKA + [GATEWAY] * (KILLS - OF_KAFKA)
    random.Random(seed).shuffle(kills)
    with kafka_and_gateway(tmp_path) as (kafka, gateway):
        survive(kafka, gateway, kills)
