"""Answers made from a kept encoding are what the encoder makes."""

import pytest

from tidegate.broker.kept_answers import (
    COPIED_BYTES,
    MAX_KEPT_ANSWER_BYTES,
    MAX_KEPT_ANSWERS,
    FetchAnswers,
    KeptAnswers,
    ProduceAnswers,
)
from tidegate.server.requests.handler import Request
from tidegate.storage.log.file_slice import FileSlice, SegmentFile
from tidegate.wire import API_BY_KEY, Encoded, RequestHeader, encode_response

TOPIC_ID = "01234567-89ab-cdef-0123-456789abcdef"
NAMES = ("a", "é" * 100)
NUMBERS = [(0, -1, 0), (2**62, 1_700_000_000_000, 2**61), (1, 2, 3), (-1, -1, -1)]


def versions(api_key):
    """Return all versions of an API."""
    return range(API_BY_KEY[api_key].min_version, API_BY_KEY[api_key].max_version + 1)


def whole(encoded):
    """Return the bytes of an answer, those of files included, once a throttle time has been set."""
    encoded.set_throttle_time_ms(77)
    parts = (part.read() if isinstance(part, FileSlice) else bytes(part) for part in encoded.buffers)
    return b"".join(parts), encoded.size, encoded.body_size


@pytest.mark.parametrize("version", versions(0))
@pytest.mark.parametrize("name", NAMES)
def test_kept_produce_answers_are_the_encoders(version, name):
    """In every version, for several partitions and numbers, in turn, the bytes and sizes are equal."""
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"name": name}
    for index in (0, 7):
        answers = ProduceAnswers(version, topic, index)
        for correlation_id, (base_offset, append_time_ms, start_offset) in enumerate(NUMBERS):
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
            ours = answers.encode(correlation_id, base_offset, append_time_ms, start_offset)
            assert whole(ours) == whole(encode_response(0, version, correlation_id, message))


@pytest.mark.parametrize("version", versions(1))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("committed", [False, True])
def test_kept_fetch_answers_are_the_encoders(tmp_path, version, name, committed):
    """In every version, without records and with few and many, the bytes and sizes are equal."""
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": name}
    path = tmp_path / "log"
    path.write_bytes(bytes(range(256)) * 1024)
    file = SegmentFile(path)
    answers = FetchAnswers(version, topic, 3, committed=committed)
    sizes = (None, 100, 127, 128, COPIED_BYTES, COPIED_BYTES + 1, 200_000)
    for correlation_id, size in enumerate(sizes):
        records = b"" if size is None else FileSlice(file, 5, size)
        end_offset = 2**40 + correlation_id
        partition = {
            "partition_index": 3,
            "error_code": 0,
            "high_watermark": end_offset,
            "last_stable_offset": end_offset - 3,
            "log_start_offset": correlation_id,
            "aborted_transactions": [] if committed else None,
            "preferred_read_replica": -1,
            "records": records,
        }
        responses = [{**topic, "partitions": [partition]}]
        message = {"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "responses": responses}
        ours = answers.encode(correlation_id, end_offset, end_offset - 3, correlation_id, records or None)
        assert whole(ours) == whole(encode_response(1, version, correlation_id, message))


def asked(body):
    """Return a request with these bytes after its header."""
    frame = memoryview(b"\0" * 10 + body)
    return Request(RequestHeader(3, 12, 5, "", 10), frame, None, None, 0)


def test_answers_are_kept_by_all_that_they_depend_on():
    """The same bytes asked by another address are another question."""
    kept, answer = KeptAnswers(), encode_response(12, 1, 5, {"error_code": 0})
    kept.store_answer(kept.key(asked(b"who"), ("here", 1)), answer)
    found = kept.get(kept.key(asked(b"who"), ("here", 1)))
    assert found.with_correlation_id(5).buffers == answer.buffers
    assert kept.get(kept.key(asked(b"who"), ("there", 1))) is None
    kept.clear()
    assert kept.get(kept.key(asked(b"who"), ("here", 1))) is None


def test_kept_answers_are_bounded_in_number_and_bytes():
    """No more answers, and no more bytes of them, than is said; large ones and long questions are not kept."""
    kept = KeptAnswers()
    small = encode_response(12, 1, 5, {"error_code": 0})
    for number in range(MAX_KEPT_ANSWERS * 2):
        kept.store_answer(kept.key(asked(bytes([number]))), small)
        assert len(kept._answers) <= MAX_KEPT_ANSWERS
    for megabytes, number in ((1, 3), (2, 1), (5, 0)):
        kept.clear()
        large = Encoded([bytearray(megabytes * 2**20)], megabytes * 2**20 - 4, 0, -1)
        for at in range(10):
            kept.store_answer(kept.key(asked(bytes([at]))), large)
            assert sum(found.size for found in kept._answers.values()) <= MAX_KEPT_ANSWER_BYTES
            assert len(kept._answers) <= number
    assert kept.key(asked(bytes(2000))) is None
    kept.store_answer(None, small)
    assert not kept._answers
