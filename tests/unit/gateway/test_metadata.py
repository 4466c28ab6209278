"""Addresses in Metadata responses are replaced in place, as they are by decoding and encoding the response."""

import pytest

from tidegate.gateway.addresses import Addresses
from tidegate.gateway.metadata import MAX_BROKERS, with_addresses
from tidegate.wire import API_BY_KEY, Message, ProtocolError, encode_response, read_response

METADATA = 3
PORT = 19092
HIDDEN = 60_000
VERSIONS = range(API_BY_KEY[METADATA].min_version, API_BY_KEY[METADATA].max_version + 1)


def response(version: int, brokers: list[Message]) -> bytearray:
    """Return a response with its length."""
    partition = {
        "error_code": 0,
        "partition_index": 0,
        "leader_id": 1,
        "leader_epoch": 3,
        "offline_replicas": [],
    }
    topic = {
        "error_code": 0,
        "name": "orders",
        "topic_id": "00000000-0000-0000-0000-000000000007",
        "is_internal": False,
        "partitions": [{**partition, "replica_nodes": [1, 2], "isr_nodes": [1]}],
        "topic_authorized_operations": 0,
    }
    message = {
        "throttle_time_ms": 7,
        "brokers": brokers,
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [topic],
        "cluster_authorized_operations": 0,
        "error_code": 0,
    }
    return bytearray(b"".join(encode_response(METADATA, version, 5, message).buffers))


def broker(node_id: int, host: str = "kafka", rack: str | None = "eu-1a") -> Message:
    """Return a broker of a response."""
    return {"node_id": node_id, "host": host, "port": 9092, "rack": rack}


def read(version: int, frame: bytearray) -> Message:
    """Decode a response with its length."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return read_response(METADATA, version, memoryview(frame)[4:], 4 + (version >= 9))


@pytest.mark.parametrize("gateway", ["gateway", "g" * 200, "broker-{id}.example.com"])
@pytest.mark.parametrize("version", VERSIONS)
def test_only_addresses_change(version: int, gateway: str) -> None:
    """Hosts and racks of any length, none, and an id of no broker; what follows the brokers stays."""
    brokers = [
        broker(1),
        broker(2, "", None),
        broker(3, "h" * 126, "r" * 126),
        broker(4, "h" * 127, "r" * 127),
        broker(5, "h" * 3000, "r" * 3000),
        broker(6, "kafka", ""),
        broker(-1),
    ]
    frame = response(version, brokers)
    wanted = read(version, frame)
    for each in wanted["brokers"]:
        own = gateway.replace("{id}", str(each["node_id"])), PORT + each["node_id"] * ("{id}" not in gateway)
        each["host"], each["port"] = own if each["node_id"] >= 0 else ("", -1)
    made = with_addresses(frame, version, 8 + (version >= 9), Addresses({"L": (gateway, PORT)}), "L")
    assert read(version, made) == wanted


@pytest.mark.parametrize("version", [1, 12])
def test_brokers_without_a_port_are_left_out_with_one_line(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """However many they are: the line names one and counts the others."""
    brokers = [broker(number) for number in (1, HIDDEN, HIDDEN + 1, 2, HIDDEN + 2)]
    addresses = Addresses({"L": ("gateway", PORT)})
    made = with_addresses(response(version, brokers), version, 8 + (version >= 9), addresses, "L")
    assert [each["node_id"] for each in read(version, made)["brokers"]] == [1, 2]
    (line,) = caplog.messages
    assert f"clients do not see broker {HIDDEN}: broker {HIDDEN} has no port" in line
    assert "; 2 others have no port either; hint: " in line


def test_a_response_with_too_many_brokers_is_refused() -> None:
    """No cluster has so many; to replace the addresses would delay all other clients."""
    frame = response(9, [broker(number) for number in range(MAX_BROKERS + 1)])
    with pytest.raises(ProtocolError, match=f"at most {MAX_BROKERS} brokers"):
        with_addresses(frame, 9, 9, Addresses({"L": ("gateway", PORT)}), "L")
