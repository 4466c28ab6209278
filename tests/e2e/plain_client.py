"""A client on a plain socket, for what no library shows: exact bytes, exact moments.

Requests and answers are encoded by kafka-python, so that nothing here was written by the side under test.
"""

import socket
import struct
import time
from typing import Any

from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record import MemoryRecordsBuilder

TIMEOUT_S = 30.0
PRODUCE_VERSION = 9
FETCH_VERSION = 11

_LENGTH = struct.Struct(">i")


def receive_frame(sock: socket.socket) -> bytes:
    """Return the next frame without its length. Raises `ConnectionError` when the connection ends first."""
    return _receive_exactly(sock, receive_size(sock))


def receive_size(sock: socket.socket) -> int:
    """Return the length of the next frame, whose bytes are to be received. Raises `ConnectionError`."""
    return _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size))[0]


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise ConnectionError(f"closed after {len(parts)} of {size} bytes")
        parts += part
    return bytes(parts)


class PlainClient:
    """One connection that sends one message at a time and knows the size of what it sent."""

    def __init__(self, port: int, client_id: str) -> None:
        self.client_id = client_id
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._correlation_id = 0

    def __enter__(self) -> "PlainClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request: Any) -> int:
        """Send `request` (a kafka-python message with its version) and return its size without the length."""
        frame = self.frame(request)
        self.socket.sendall(frame)
        return len(frame) - _LENGTH.size

    def frame(self, request: Any) -> bytes:
        """Return the bytes of `request` as this client sends it, with the length."""
        self._correlation_id += 1
        request.with_header(self._correlation_id, self.client_id)
        return bytes(request.encode(header=True, framed=True))

    def receive(self, response_class: Any) -> Any:
        """Return the next answer. Raises `ConnectionError` when the connection ends first."""
        return response_class.decode(receive_frame(self.socket), header=True)

    def ask(self, request: Any, response_class: Any) -> Any:
        """Send `request` and return its answer."""
        self.send(request)
        return self.receive(response_class)

    def send_produce(self, topic: str, *, value_bytes: int, acks: int = 1, partition: int = 0) -> int:
        """Send one record of `value_bytes` zero bytes to a partition and return the request's size."""
        return self.send(produce_request(topic, bytes(value_bytes), acks=acks, partition=partition))

    def receive_produce(self) -> Any:
        """Return the answer to a `send_produce`."""
        return self.receive(ProduceResponse[PRODUCE_VERSION])

    def alter_quotas(self, entity: dict[str, str | None], values: dict[str, float | None]) -> None:
        """Set the quotas of an entity (None as name: the default entity; None as value: remove)."""
        request = AlterClientQuotasRequest[0](entries=[_quota_entry(entity, values)], validate_only=False)
        answer = self.ask(request, AlterClientQuotasResponse[0])
        assert [entry.error_code for entry in answer.entries] == [0], answer

    def served_keys(self) -> list[int]:
        """Return the API keys that the broker says it serves."""
        answer = self.ask(ApiVersionsRequest[0](), ApiVersionsResponse[0])
        assert answer.error_code == 0
        return [api.api_key for api in answer.api_keys]


def _quota_entry(entity: dict[str, str | None], values: dict[str, float | None]) -> Any:
    entry_class = AlterClientQuotasRequest.EntryData
    return entry_class(
        entity=[entry_class.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            entry_class.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in values.items()
        ],
    )


def produce_request(topic: str, value: bytes, *, acks: int = 1, partition: int = 0) -> Any:
    """Return a Produce request with one uncompressed record for a partition of `topic`."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 24)
    builder.append(timestamp=time.time_ns() // 1_000_000, key=None, value=value)
    builder.close()
    topic_class = ProduceRequest.TopicProduceData
    part = topic_class.PartitionProduceData(index=partition, records=builder.buffer())
    return ProduceRequest[PRODUCE_VERSION](
        transactional_id=None,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[topic_class(name=topic, partition_data=[part])],
    )


def fetch_request(topic: str, *, max_bytes: int = 1 << 20) -> Any:
    """Return a Fetch of partition 0 of `topic` from its beginning."""
    topic_class = FetchRequest.FetchTopic
    partition = topic_class.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest[FETCH_VERSION](
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[topic_class(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
