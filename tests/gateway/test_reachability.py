"""The port of a broker that cannot be reached, while the gateway itself has no free descriptor."""

import asyncio
import socket

from tests.descriptors import limited_descriptors
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.lying_broker import LyingCluster
from tests.gateway.raw_client import RawClient
from tests.server.nodes import until
from tests.waiting import wait_until
from tests.wire.odd_messages import plain_message

from tidegate.api_keys import METADATA
from tidegate.client.settings import Address
from tidegate.gateway.brokers import Broker
from tidegate.gateway.reachability import Reachability


class PortOfNode:
    """The part of a node that opens and closes its port."""

    accepts = True

    def refuse_connections(self) -> None:
        """Close the port."""
        self.accepts = False

    def accept_connections(self) -> None:
        """Open the port."""
        self.accepts = True


def test_a_broker_is_served_again_after_descriptors_ran_out():
    """A try without a free descriptor fails as one that the broker refuses; another one follows."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            broker, node = Broker(1), PortOfNode()
            broker.address = socket.AF_INET, server.getsockname()
            reachability = Reachability(broker, node)
            with limited_descriptors() as descriptors:
                descriptors.limit(descriptors.lowest_free())
                broker.on_unreachable()
                await asyncio.sleep(0)  # its first try
            assert not node.accepts
            await until(lambda: node.accepts)
            reachability.close()

    asyncio.run(scenario())


def test_another_address_of_the_host_is_tried():
    """A host may have an IPv6 address at which its broker does not listen; what works is used from then on."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            refusing = socket.AF_INET6, ("::1", port, 0, 0)
            accepting = socket.AF_INET, ("127.0.0.1", port)
            broker, node = Broker(1), PortOfNode()
            broker.follow(Address("localhost", port), [refusing, accepting])
            assert broker.address == refusing
            reachability = Reachability(broker, node)
            broker.on_unreachable()
            assert not node.accepts
            await until(lambda: node.accepts)
            assert broker.address == accepting
            broker.follow(Address("localhost", port), [refusing, accepting])
            assert broker.address == accepting
            reachability.close()

    asyncio.run(scenario())


def test_brokers_that_exchange_their_addresses_get_their_own_clients(tmp_path):
    """A connection that leads to another broker now is closed; one to a broker that has not moved stays."""
    first, second, _ = clusters = [LyingCluster({}) for _ in range(3)]
    ports = {number: each.port for number, each in enumerate(clusters, 1)}
    asked: list[int] = []
    for number, each in enumerate(clusters, 1):
        each.ports = ports

        def tell(sock, header, number=number, each=each):
            asked.append(number)
            sock.sendall(each.honest_frame(header))

        each.lies["probe"] = tell
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    gateway = GatewayProcess(tmp_path, first.address, ("--quotas", str(quotas)))
    try:
        gateway.start()
        with (
            RawClient(gateway.ports[1], "probe") as moved,
            RawClient(gateway.ports[3], "probe") as unmoved,
        ):
            ask_brokers(moved)
            ask_brokers(unmoved)
            ports |= {1: second.port, 2: first.port}
            moved.socket.settimeout(15.0)
            assert moved.socket.recv(1) == b""
            ask_brokers(unmoved)
        wait_until(lambda: "another broker has its address now" in gateway.log)
        with RawClient(gateway.ports[1], "probe") as again:
            ask_brokers(again)
        assert asked == [1, 3, 3, 2]
    finally:
        gateway.close()
        for each in clusters:
            each.close()


def ask_brokers(client: RawClient) -> None:
    """Ask for the brokers."""
    assert len(client.ask(METADATA, 9, plain_message(METADATA, 9))["brokers"]) == 3
