"""A broker that is newer than the gateway: clients learn of no version that the gateway could not forward."""

import re
import socket
import struct
from collections.abc import Iterator

import pytest
from tests.e2e.plain_client import receive_frame
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.lying_broker import BROKER_ID, LyingBroker

from tidegate import error_codes
from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    FETCH,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.gateway.responses import DESCRIBE_QUORUM, LAST_FETCH_WITHOUT_ADDRESSES
from tidegate.wire import API_BY_KEY, encode_request, read_response
from tidegate.wire.header import decode_response_header

TIMEOUT_S = 20.0
UNKNOWN_API = 999
READ = {
    *(API_VERSIONS, CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS, DESCRIBE_CLIENT_QUOTAS),
    *(ALTER_CLIENT_QUOTAS, SASL_HANDSHAKE, SASL_AUTHENTICATE, PRODUCE, DESCRIBE_QUORUM),
}
NEWER = 100


class NewerBroker(LyingBroker):
    """A broker that offers versions of the future, and no Fetch of the past."""

    def _api_18(self) -> dict:
        keys = [{"api_key": key, "min_version": 0, "max_version": NEWER} for key in (*READ, UNKNOWN_API)]
        keys.append({"api_key": METADATA, "min_version": 0, "max_version": 9})
        keys.append({"api_key": FETCH, "min_version": 17, "max_version": 18})
        return {"error_code": 0, "api_keys": keys, "throttle_time_ms": 0}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Return a gateway before such a broker."""
    broker = NewerBroker()
    directory = tmp_path_factory.mktemp("newer")
    quotas = directory / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    process = GatewayProcess(directory, broker.address, ("--quotas", str(quotas))).start()
    yield process
    process.close()
    broker.close()


def connected(gateway: GatewayProcess) -> socket.socket:
    """Return a connection to the gateway."""
    return socket.create_connection(("127.0.0.1", gateway.ports[BROKER_ID]), timeout=TIMEOUT_S)


@pytest.mark.parametrize("version", range(5))
def test_versions_of_the_future_are_not_offered(gateway, version):
    """The gateway offers versions that it knows of the APIs that it reads, and all versions of the others."""
    software = {"client_software_name": "x", "client_software_version": "1"}
    with connected(gateway) as sock:
        sock.sendall(encode_request(API_VERSIONS, version, 1, "x", software))
        frame = memoryview(receive_frame(sock))
    _, at = decode_response_header(frame, API_VERSIONS, version)
    answer = read_response(API_VERSIONS, version, frame, at)
    offered = {each["api_key"]: each["max_version"] for each in answer["api_keys"]}
    assert offered == {
        **{key: API_BY_KEY[key].max_version for key in READ},
        UNKNOWN_API: NEWER,
        METADATA: 9,
    }


def test_a_newer_version_of_api_versions_is_refused(gateway):
    """Its answer could not be read. The client learns which version to try, and uses it (KIP-511)."""
    frame = struct.pack(">hhih", API_VERSIONS, NEWER, 7, 1) + b"x\0\2x\2y\0"
    with connected(gateway) as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        answer = memoryview(receive_frame(sock))
        assert struct.unpack_from(">i", answer) == (7,)
        found = read_response(API_VERSIONS, 0, answer, 4)
        assert found["error_code"] == error_codes.UNSUPPORTED_VERSION
        (own,) = found["api_keys"]
        assert (own["api_key"], own["max_version"]) == (API_VERSIONS, API_BY_KEY[API_VERSIONS].max_version)
        sock.sendall(encode_request(API_VERSIONS, 0, 8, "x", {}))
        assert read_response(API_VERSIONS, 0, memoryview(receive_frame(sock)), 4)["error_code"] == 0


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        (DESCRIBE_QUORUM, API_BY_KEY[DESCRIBE_QUORUM].max_version + 1),
        (FETCH, LAST_FETCH_WITHOUT_ADDRESSES + 1),
    ],
)
def test_a_request_of_a_version_with_addresses_closes_the_connection(gateway, api_key, version):
    """Also where the client has not asked which versions are offered."""
    frame = struct.pack(">hhih", api_key, version, 7, 1) + b"x\0" + bytes(20)
    with connected(gateway) as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        assert sock.recv(1) == b""
    name = API_BY_KEY[api_key].name
    assert re.search(
        f"api_version of {name} must be .*{version - 1} through the gateway, got {version}", gateway.log
    )
