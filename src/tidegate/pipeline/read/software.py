"""What is known of how a client sends, by the software that it names in its ApiVersions.

`PIPELINES`: its producer has several requests in flight. `SENDS_ON`: it writes into a socket that is not read, and
does not wait for `throttle_time_ms`. A client that says nothing has one request in flight, and waits.
"""

from tidegate.pipeline.layout import PIPELINES, SENDS_ON

__all__ = ["client_bits"]

_LIBRDKAFKA = ("librdkafka", "confluent-kafka", "rdkafka", "rust-rdkafka", "node-rdkafka")
_OTHERS = {
    "apache-kafka-java": PIPELINES,
    "kafka-python": PIPELINES,
    "kgo": PIPELINES,
    "franz-go": PIPELINES,
    "sarama": PIPELINES,
}


def client_bits(software: str) -> int:
    """Return the bits of `Rows.flags` for a client's software."""
    if software.startswith(_LIBRDKAFKA):
        return PIPELINES | SENDS_ON
    return _OTHERS.get(software, 0)
