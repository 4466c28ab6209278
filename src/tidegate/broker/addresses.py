"""Where clients are told to find this node, and what it lets them do. Shared by handlers that describe the cluster."""

from typing import Final

from tidegate.server.handler import Request
from tidegate.storage.storage import Storage

__all__ = [
    "CLUSTER_OPERATIONS",
    "NO_OPERATIONS",
    "TOPIC_OPERATIONS",
    "ZERO_ID",
    "address_of_node",
]

ZERO_ID: Final = "00000000-0000-0000-0000-000000000000"

TOPIC_OPERATIONS: Final = 3576
"""Every operation on a topic, as a bit set: nothing is forbidden here. Source: Kafka `AclOperation`."""

CLUSTER_OPERATIONS: Final = 8096
"""Every operation on the cluster, as a bit set."""

NO_OPERATIONS: Final = -(2**31)
"""What stands there when the client did not ask."""


def address_of_node(storage: Storage, request: Request) -> tuple[str, int]:
    """Return the advertised host and port, or those that the client itself came in by."""
    if storage.config.advertised is not None:
        return storage.config.advertised
    return request.connection.local_host, request.connection.local_port
