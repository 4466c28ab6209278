"""Answers made from a kept encoding are what the encoder makes."""

import pytest

from tidegate.storage.handlers import produce_answers
from tidegate.storage.handlers.produce_answers import ProduceAnswers
from tidegate.wire import API_BY_KEY, encode_response

TOPIC_ID = "01234567-89ab-cdef-0123-456789abcdef"
VERSIONS = range(API_BY_KEY[0].min_version, API_BY_KEY[0].max_version + 1)


def _expected(version, correlation_id, topic, index, base_offset, append_time_ms, start_offset):
    partition = {
        "index": index,
        "error_code": 0,
        "base_offset": base_offset,
        "log_append_time": append_time_ms,
        "log_start_offset": start_offset,
        "record_errors": (),
        "error_message": None,
    }
    message = {"responses": [{**topic, "partition_responses": [partition]}], "throttle_time_ms": 0}
    return encode_response(0, version, correlation_id, message)


@pytest.mark.parametrize("version", VERSIONS)
def test_kept_answers_are_the_encoders(version):
    """In every version, for several partitions and numbers, in turn, the bytes and sizes are equal."""
    answers = ProduceAnswers()
    numbers = [(0, -1, 0), (2**62, 1_700_000_000_000, 2**61), (1, 2, 3), (-1, -1, -1)]
    for name in ("a", "é" * 100):
        topic = {"topic_id": TOPIC_ID} if version >= 13 else {"name": name}
        for index in (0, 7):
            for correlation_id, (base, append, start) in enumerate(numbers):
                ours = answers.encode(
                    version, correlation_id, topic, index,
                    base_offset=base, append_time_ms=append, start_offset=start,
                )  # fmt: skip
                expected = _expected(version, correlation_id, topic, index, base, append, start)
                ours.set_throttle_time_ms(77)
                expected.set_throttle_time_ms(77)
                assert ours.buffers == expected.buffers
                assert (ours.size, ours.body_size) == (expected.size, expected.body_size)


def test_kept_answers_are_bounded(monkeypatch):
    """More partitions than are kept are answered all the same."""
    monkeypatch.setattr(produce_answers, "MAX_KEPT_ANSWERS", 2)
    answers = ProduceAnswers()
    for index in range(5):
        ours = answers.encode(9, 1, {"name": "t"}, index, base_offset=1, append_time_ms=-1, start_offset=0)
        assert ours.buffers == _expected(9, 1, {"name": "t"}, index, 1, -1, 0).buffers
        assert len(answers._kept) <= 2
