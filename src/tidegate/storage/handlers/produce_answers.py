"""Answers to a Produce of one batch, the commonest request of all, made from a kept encoding.

The answers to one partition differ in four numbers: correlation id, base offset, append time and start offset. The rest
is encoded once; where the numbers lie is found by encoding values that stand nowhere else.
"""

import struct
from typing import NamedTuple

from tidegate.wire import Encoded, encode_response

__all__ = ["MAX_KEPT_ANSWERS", "ProduceAnswers"]

MAX_KEPT_ANSWERS = 4096
"""Partitions, times versions in use, whose encoding is kept; past it all are made anew."""

_PRODUCE = 0
_CORRELATION_ID_AT = 4
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_MARKS = (0x5A01_7B3C_C6D4_E2F1, 0x5A02_7B3C_C6D4_E2F2, 0x5A03_7B3C_C6D4_E2F3)
"""Stand-ins for base offset, append time and start offset while their places are looked for."""


class _Kept(NamedTuple):
    first: bytes
    size: int
    body_size: int
    throttle_at: int
    base_offset_at: int
    append_time_at: int
    start_offset_at: int  # -1 where the version has none


class ProduceAnswers:
    """Encodes successful answers with one topic and one partition."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, int], _Kept] = {}

    def encode(
        self,
        version: int,
        correlation_id: int,
        topic: dict[str, str],
        index: int,
        *,
        base_offset: int,
        append_time_ms: int,
        start_offset: int,
    ) -> Encoded:
        """Return the answer; `topic` is `{"name": …}` or, from version 13, `{"topic_id": …}`."""
        (name,) = topic.values()
        kept = self._kept.get((version, name, index))
        if kept is None:
            kept = self._keep(version, topic, name, index)
        first = bytearray(kept.first)
        _INT32.pack_into(first, _CORRELATION_ID_AT, correlation_id)
        _INT64.pack_into(first, kept.base_offset_at, base_offset)
        _INT64.pack_into(first, kept.append_time_at, append_time_ms)
        if kept.start_offset_at >= 0:
            _INT64.pack_into(first, kept.start_offset_at, start_offset)
        return Encoded([first], kept.size, kept.body_size, kept.throttle_at)

    def _keep(self, version: int, topic: dict[str, str], name: str, index: int) -> _Kept:
        base_offset, append_time_ms, start_offset = _MARKS
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
        encoded = encode_response(_PRODUCE, version, 0, message)
        (first,) = encoded.buffers
        places = [first.find(_INT64.pack(mark)) for mark in _MARKS]
        kept = _Kept(bytes(first), encoded.size, encoded.body_size, encoded.throttle_at, *places)
        if len(self._kept) >= MAX_KEPT_ANSWERS:
            self._kept.clear()
        self._kept[version, name, index] = kept
        return kept
