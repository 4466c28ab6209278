"""Waiting in tests for what other processes and threads bring about."""

import time
from collections.abc import Callable

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

__all__ = ["wait_for_leaders", "wait_until"]

TIMEOUT_S = 30.0
_STEP_S = 0.01


def wait_until(
    is_true: Callable[[], object], timeout_s: float = TIMEOUT_S, *, told: Callable[[], object] = str
) -> None:
    """Wait until something is true; fail after `timeout_s` with what `told` returns."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, told()
        time.sleep(_STEP_S)


def wait_for_leaders(admin: AdminClient, topic: str, partitions: int = 1) -> None:
    """Wait until the leaders know a new topic: brokers of Kafka follow their controller a little later."""
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}

    def are_known() -> bool:
        try:
            for answer in admin.list_offsets(wanted).values():
                answer.result(timeout=10)
        except KafkaException:
            return False
        return True

    wait_until(are_known)
