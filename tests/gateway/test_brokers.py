"""The brokers of a cluster as the gateway follows them: those that leave are not served until they return."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.gateway.lying_broker import BROKER_ID, LyingBroker

from tidegate.api_keys import DESCRIBE_CONFIGS, METADATA
from tidegate.client.settings import Address, load_client_settings
from tidegate.gateway.brokers import Brokers
from tidegate.wire import encode_response

OTHER_ID = BROKER_ID + 1


@pytest.fixture
def cluster() -> Iterator[LyingBroker]:
    """Return a server that speaks for a cluster."""
    server = LyingBroker()
    yield server
    server.close()


def test_a_broker_that_leaves_is_unreachable_at_once(cluster):
    """Its node learns it once, without waiting for a client; when it returns, its address is known again."""
    ids = {BROKER_ID, OTHER_ID}

    def tell(sock, header):
        if header.api_key != METADATA:
            sock.sendall(cluster.honest_frame(header))
            return
        places = [{"node_id": each, "host": "127.0.0.1", "port": cluster.port, "rack": None} for each in ids]
        message = {**cluster.metadata(), "brokers": places}
        encoded = encode_response(METADATA, header.api_version, header.correlation_id, message)
        sock.sendall(b"".join(encoded.buffers))

    async def follow() -> list[str]:
        settings = load_client_settings(cluster.address, None)
        cluster.lies[settings.client_id] = tell
        brokers = Brokers(settings)
        calls: list[str] = []
        await brokers.refresh()
        other = brokers.by_id[OTHER_ID]
        other.on_unreachable = lambda: calls.append(other.name)
        ids.remove(OTHER_ID)
        for _ in range(2):
            await brokers.refresh()
            assert other.address is None
        ids.add(OTHER_ID)
        await brokers.refresh()
        assert other.address is not None
        await brokers.close()
        return calls

    assert asyncio.run(follow()) == [f"{OTHER_ID} (127.0.0.1:{cluster.port})"]


def test_an_empty_list_of_brokers_changes_nothing(cluster):
    """A broker that starts may know of no broker yet, as Kafka's own clients expect."""
    brokers_now = cluster.metadata()["brokers"]

    def tell(sock, header):
        if header.api_key != METADATA:
            sock.sendall(cluster.honest_frame(header))
            return
        message = {**cluster.metadata(), "brokers": brokers_now}
        encoded = encode_response(METADATA, header.api_version, header.correlation_id, message)
        sock.sendall(b"".join(encoded.buffers))

    async def follow() -> None:
        nonlocal brokers_now
        settings = load_client_settings(cluster.address, None)
        cluster.lies[settings.client_id] = tell
        brokers = Brokers(settings)
        await brokers.refresh()
        broker = brokers.by_id[BROKER_ID]
        calls: list[str] = []
        broker.on_unreachable = lambda: calls.append("unreachable")
        brokers_now = []
        await brokers.refresh()
        assert broker.address is not None
        assert not calls
        await brokers.close()

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("", 9092),
        ("127.0.0.1", 0),
        ("127.0.0.1", -1),
        ("127.0.0.1", 70_000),
        ("a\0b", 9092),
        ("x" * 300, 9092),
    ],
)
def test_an_address_that_is_none_is_not_used(cluster, caplog, host, port):
    """A broker keeps the address that it had; an empty host would be the gateway's own machine."""

    async def follow() -> None:
        brokers = Brokers(load_client_settings(cluster.address, None))
        await brokers.refresh()
        before = brokers.by_id[BROKER_ID].address
        await brokers._follow({BROKER_ID: Address(host, port), OTHER_ID: Address(host, port)})
        assert brokers.by_id[BROKER_ID].address == before
        assert brokers.by_id[OTHER_ID].address is None
        await brokers.close()

    asyncio.run(follow())
    assert "cannot look up the host of broker" in caplog.text


class ConfiguredBroker(LyingBroker):
    """A broker of a cluster that has a setting: how many partitions a new topic gets.

    ports: of all brokers by id, to be filled by the test.
    """

    def __init__(self, ports: dict[int, int], default_partitions: int) -> None:
        self._ports = ports
        self._default_partitions = default_partitions
        super().__init__()

    def honest_frame(self, header):
        """Return the answer to a request. DescribeConfigs is served in version 1."""
        if header.api_key != DESCRIBE_CONFIGS:
            return super().honest_frame(header)
        config = {"name": "num.partitions", "value": str(self._default_partitions), "read_only": False}
        config |= {"config_source": 4, "is_sensitive": False, "synonyms": []}
        result = {
            "error_code": 0,
            "error_message": None,
            "resource_type": 4,
            "resource_name": "1",
            "configs": [config],
        }
        message = {"throttle_time_ms": 0, "results": [result]}
        encoded = encode_response(DESCRIBE_CONFIGS, header.api_version, header.correlation_id, message)
        return b"".join(encoded.buffers)

    def _api_18(self):
        served = super()._api_18()
        served["api_keys"].append({"api_key": DESCRIBE_CONFIGS, "min_version": 1, "max_version": 1})
        return served

    def _api_3(self):
        brokers = [
            {"node_id": each, "host": "127.0.0.1", "port": port, "rack": None}
            for each, port in self._ports.items()
        ]
        return {**self.metadata(), "brokers": brokers}


def test_default_partitions_are_read_of_a_broker_that_is_in_the_cluster(monkeypatch):
    """The setting is that of the broker with the lowest id; when it has left, of the next."""
    monkeypatch.setattr("tidegate.gateway.brokers.SETTINGS_EVERY_S", 0.0)
    ports: dict[int, int] = {}
    first, second = ConfiguredBroker(ports, 3), ConfiguredBroker(ports, 7)
    ports |= {BROKER_ID: first.port, OTHER_ID: second.port}

    async def follow() -> list[int]:
        brokers = Brokers(load_client_settings(first.address, None))
        found = []
        for left in (None, BROKER_ID):
            ports.pop(left, None)
            await brokers.refresh()
            found.append(brokers.default_partitions)
        await brokers.close()
        return found

    try:
        assert asyncio.run(follow()) == [3, 7]
    finally:
        first.close()
        second.close()
