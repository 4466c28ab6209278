"""The same quota at Kafka and at a gateway admits the same bytes, to 2 %, over more than three minutes.

Both are asked at the same time by the same kinds of clients, which take all they get. Whole windows are counted.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.throttled_clients import (
    Admissions,
    Load,
    fetch_plain_sending_on,
    fetch_plain_waiting,
    produce_kafka_python,
    produce_plain_sending_on,
    produce_plain_waiting,
)
from tests.gateway.raw_client import RawClient

RATE = 100_000
VALUE_BYTES = 10_000
WINDOW_S = 11.0  # `quota.window.num` windows of a second
WINDOWS = 17
WARM_UP = 2  # windows that are not counted: a new client has its burst in them
NEAR = 0.02
KINDS = {
    "produces and waits": (produce_plain_waiting, "producer_byte_rate"),
    "produces and sends on": (produce_plain_sending_on, "producer_byte_rate"),
    "produces with kafka-python": (produce_kafka_python, "producer_byte_rate"),
    "fetches and waits": (fetch_plain_waiting, "consumer_byte_rate"),
    "fetches and sends on": (fetch_plain_sending_on, "consumer_byte_rate"),
}


def admitted(admissions: Admissions) -> int:
    """Return the bytes that were admitted in the windows that count."""
    begun = admissions[0][0] + WARM_UP * WINDOW_S
    return sum(size for at, size in admissions if begun <= at < begun + WINDOWS * WINDOW_S)


@pytest.mark.timeout(600)
def test_admitted_bytes_are_those_of_kafka(kafka, gateway, create_topic, unique):
    """Of each kind of client the gateway admits what Kafka admits, and no more than the quota."""
    topic = create_topic(kafka, unique)
    with RawClient(kafka.port, "filler") as filler:
        for _ in range(3):
            filler.produce(topic, VALUE_BYTES)
    jobs = {}
    with ThreadPoolExecutor(2 * len(KINDS)) as pool:
        for kind, (work, quota) in KINDS.items():
            for side, port in (("kafka", kafka.port), ("gateway", gateway.port)):
                client_id = f"{unique} {side} {kind}"
                with RawClient(port, "admin") as admin:
                    admin.set_quotas(client_id, **{quota: RATE})
                seconds = (WINDOWS + WARM_UP + 1) * WINDOW_S
                load = Load(
                    port=port, client_id=client_id, topic=topic, value_bytes=VALUE_BYTES, seconds=seconds
                )
                jobs[kind, side] = pool.submit(work, load)
    far = []
    for kind in KINDS:
        direct, through = (admitted(jobs[kind, side].result()) for side in ("kafka", "gateway"))
        print(f"{kind}: Kafka {direct:,}, gateway {through:,}: {through / direct - 1:+.2%}")
        if abs(through / direct - 1) > NEAR:
            far.append(kind)
    assert not far
