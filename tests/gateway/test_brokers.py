"""The brokers of a cluster as the gateway follows them: those that leave are not served until they return."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.gateway.lying_broker import BROKER_ID, LyingBroker

from tidegate.api_keys import METADATA
from tidegate.client.settings import load_client_settings
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
