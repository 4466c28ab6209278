"""Sending behavior of a client, by the software that it names in its ApiVersions request.

`PIPELINES`: its producer has several requests in flight. `SENDS_ON`: it writes into a socket that is not read, and
does not wait for `throttle_time_ms`. `READS_AHEAD`: its consumer fetches while the application processes the previous
fetch. `LOOKS_IN_STEPS`: its consumer sleeps in steps until a throttle is over. A client that names no software, or
software not listed here, has one request in flight, and waits.
"""

from tidegate.pipeline.layout import LOOKS_IN_STEPS, PIPELINES, READS_AHEAD, SENDS_ON

__all__ = ["client_bits"]

_LIBRDKAFKA = ("librdkafka", "confluent-kafka", "rdkafka", "rust-rdkafka", "node-rdkafka")
_OTHERS = {
    "apache-kafka-java": PIPELINES | READS_AHEAD,
    "kafka-python": PIPELINES | LOOKS_IN_STEPS,
    "kgo": PIPELINES | READS_AHEAD,
    "franz-go": PIPELINES | READS_AHEAD,
    "sarama": PIPELINES | READS_AHEAD,
}


def client_bits(software: str) -> int:
    """Return the bits of `Rows.flags` for a client's software."""
    if software.startswith(_LIBRDKAFKA):
        return PIPELINES | SENDS_ON | READS_AHEAD
    return _OTHERS.get(software, 0)
