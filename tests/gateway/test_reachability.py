"""The port of a broker that cannot be reached, while the gateway itself has no free descriptor."""

import asyncio
import os
import resource
import socket

from tests.server.nodes import until

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
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            broker, node = Broker(1), PortOfNode()
            broker.address = socket.AF_INET, server.getsockname()
            reachability = Reachability(broker, node)
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                broker.on_unreachable()
                await asyncio.sleep(0)  # its first try
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert not node.accepts
            await until(lambda: node.accepts)
            reachability.close()

    asyncio.run(scenario())
