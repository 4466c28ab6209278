"""The same request bytes, sent to Kafka and through the gateway, give the same response bytes, but for addresses."""

import socket
import struct
import time
from typing import Any

import pytest
from tests.e2e.plain_client import receive_frame
from tests.gateway.gateway_process import GatewayProcess
from tests.wire.odd_messages import plain_message

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    DELETE_GROUPS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    FETCH,
    SASL_HANDSHAKE,
)
from tidegate.gateway.relay import last_version
from tidegate.gateway.responses import DESCRIBE_QUORUM
from tidegate.wire import API_BY_KEY, encode_request, read_response
from tidegate.wire.definitions import Field, layout
from tidegate.wire.header import decode_response_header

TIMEOUT_S = 30.0
TRIES = 5
CLOSED = b""
DESCRIBE_LOG_DIRS, DELETE_SHARE_GROUP_OFFSETS = 35, 92
FREE_BYTES = slice(-11, -3)
"""Place of the free space of the disk, which others use, too, in responses of DescribeLogDirs from version 5 on."""
_OWN = {
    "base_offset",
    "producer_id",
    "member_id",
    "members",
    "log_append_time_ms",
    "timestamp",
    "offset",
    "usable_bytes",
}
"""Fields that differ between two requests to the same broker: each changes something, or is told a new id."""
_NO_ID = "00000000-0000-0000-0000-000000000000"
_DELETING = {
    DELETE_TOPICS: {"topic_names": ["none"], "topics": [{"name": "none", "topic_id": _NO_ID}]},
    DELETE_GROUPS: {"groups_names": ["none"]},
    DELETE_SHARE_GROUP_OFFSETS: {"group_id": "none"},
}
"""What is deleted must not be there: the second of two requests would not find it."""
_GATEWAYS_OWN = {ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS}


def exchange(port: int, frame: bytes) -> bytes:
    """Return the response to one request on a connection of its own, `CLOSED` where that ends instead."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as sock:
        sock.sendall(frame)
        try:
            return receive_frame(sock)
        except ConnectionError:
            return CLOSED


def advertised(port: int) -> dict[int, tuple[int, int]]:
    """Return the versions of each API that a broker offers."""
    response = exchange(port, encode_request(API_VERSIONS, 0, 1, "x", {}))
    message = read_response(API_VERSIONS, 0, memoryview(response), 4)
    return {each["api_key"]: (each["min_version"], each["max_version"]) for each in message["api_keys"]}


def plain_frame(api_key: int, version: int) -> bytes:
    """Return a plain request; for an API that Tidegate does not know, its header alone."""
    api = API_BY_KEY.get(api_key)
    if api is None or not api.speaks(version):
        return struct.pack(">ihhih", 9, api_key, version, 1, 1) + b"x"
    fields = layout(api_key, version, "request").fields
    message = _filled(fields, plain_message(api_key, version))
    if api_key in _DELETING:
        message.update(_DELETING[api_key])
    return encode_request(api_key, version, 1, "x", message)


def _filled(fields: tuple[Field, ...], message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with a text in the place of each null that is none."""
    filled = {}
    for field in fields:
        value = message[field.name]
        if value is None and not field.nullable and field.type == "string":
            value = "x"
        elif field.type == "struct" and value:
            inner = [_filled(field.fields, item) for item in (value if field.array else [value])]
            value = inner if field.array else inner[0]
        filled[field.name] = value
    return filled


def comparable(api_key: int, version: int, response: bytes, ports: dict[int, int]) -> Any:
    """Return a response without what differs between two requests, each known port replaced by the broker's id."""
    api = API_BY_KEY.get(api_key)
    if api_key == DESCRIBE_LOG_DIRS and version >= 5:
        return response[: FREE_BYTES.start] + response[FREE_BYTES.stop :]
    if not response or api is None or not api.speaks(version):
        return response
    _, at = decode_response_header(memoryview(response), api_key, version)
    message = read_response(api_key, version, memoryview(response), at)
    if api_key == API_VERSIONS:
        for each in message["api_keys"]:
            last = last_version(each["api_key"])
            each["max_version"] = min(each["max_version"], each["max_version"] if last is None else last)
    return _masked(message, {port: broker for broker, port in ports.items()})


def _masked(value: Any, brokers: dict[int, int], name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, brokers, key) for key, item in value.items() if key not in _OWN}
    if isinstance(value, list):
        return [_masked(item, brokers) for item in value]
    if name == "port":
        return f"broker {brokers[value]}" if value in brokers else value
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.fixture(scope="module")
def versions(kafka) -> dict[int, tuple[int, int]]:
    """Return what Kafka offers, once each request has had its effect: topic `x` is there, and so on."""
    offered = advertised(kafka.port)
    for api_key, (_, most) in offered.items():
        exchange(kafka.port, plain_frame(api_key, most))
    return offered


def test_only_versions_with_hidden_addresses_are_missing(gateway: GatewayProcess, versions):
    """The gateway offers all APIs of Kafka, and all versions but those whose addresses it could not rewrite."""
    through = advertised(gateway.ports[1])
    assert through.keys() == versions.keys()
    for api_key, (least, most) in versions.items():
        last = last_version(api_key)
        assert through[api_key] == (least, most if last is None else min(most, last))
    narrowed = {api_key for api_key in versions if through[api_key] != versions[api_key]}
    assert narrowed <= {FETCH}


def test_controllers_have_no_addresses(kafka, gateway: GatewayProcess):
    """No gateway listens there. The rest of the quorum is that which Kafka describes, directories included."""
    topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    direct, through = (described_quorum(port, [topic]) for port in (kafka.port, gateway.ports[1]))
    assert direct["nodes"]
    assert through["nodes"] == []
    ((direct_voter,), (voter,)) = (
        each["topics"][0]["partitions"][0]["current_voters"] for each in (direct, through)
    )
    assert voter["replica_id"] == direct_voter["replica_id"]
    assert voter["replica_directory_id"] == direct_voter["replica_directory_id"]


def described_quorum(port: int, topics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response to a DescribeQuorum of the newest version."""
    version = API_BY_KEY[DESCRIBE_QUORUM].max_version
    response = memoryview(
        exchange(port, encode_request(DESCRIBE_QUORUM, version, 1, "x", {"topics": topics}))
    )
    _, at = decode_response_header(response, DESCRIBE_QUORUM, version)
    return read_response(DESCRIBE_QUORUM, version, response, at)


def difference(port: int, gateway: GatewayProcess, api_key: int, version: int) -> tuple[bytes, bytes] | None:
    """Return the two responses where they differ, also when all effects of earlier requests have settled."""
    frame = plain_frame(api_key, version)
    for _ in range(TRIES):
        direct, through = exchange(port, frame), exchange(gateway.ports[1], frame)
        if direct == through:
            return None
        if comparable(api_key, version, direct, {1: port}) == comparable(
            api_key, version, through, gateway.ports
        ):
            return None
        time.sleep(0.2)
    return direct[:200], through[:200]


def test_every_version_is_answered_as_by_kafka(kafka, gateway: GatewayProcess, versions):
    """Of each API and version that the gateway offers, the answer is Kafka's own."""
    differing = []
    asked = 0
    for api_key, (least, most) in advertised(gateway.ports[1]).items():
        if api_key in _GATEWAYS_OWN:
            continue
        for version in range(least, most + 1):
            if (api_key, version) == (SASL_HANDSHAKE, 0):
                continue  # what follows it has no frames: the gateway refuses it
            asked += 1
            found = difference(kafka.port, gateway, api_key, version)
            if found is not None:
                differing.append((api_key, version, *found))
    assert asked > 200
    assert not differing, differing
