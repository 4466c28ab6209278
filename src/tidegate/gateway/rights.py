"""Rights to the gateway's own quotas: those that the client has at the cluster.

The gateway asks the broker, on the client's own connection, what the client may do to the cluster (KIP-430), and then
answers DescribeClientQuotas and AlterClientQuotas as a broker does: describing needs DESCRIBE_CONFIGS, altering
ALTER_CONFIGS. A cluster without an authorizer allows everything.
"""

from typing import Any

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import DESCRIBE_CLUSTER
from tidegate.gateway.asking import UpstreamLostError, ask_broker
from tidegate.server.requests.handler import Answer, Deferred, Handler, Request, Work

__all__ = ["ClusterRights", "with_cluster_rights"]

_UNKNOWN = -(2**31)  # what a broker that was not asked for rights answers


class ClusterRights:
    """The rights of one client at the cluster; they take the place of an authorizer."""

    def __init__(self, operations: int) -> None:
        self._operations = operations

    def permitted(self, user: str, host: str, resource_type: int, name: str) -> int:
        """Return the operations on a resource, as a bit set; none on anything but the cluster."""
        return self._operations if resource_type == acl.CLUSTER else 0


def with_cluster_rights(handler: Handler, request: Request) -> Work:
    """Serve a request by `handler`, with the rights that the client has at the cluster."""
    connection: Any = request.connection
    asked = {
        "include_cluster_authorized_operations": True,
        "endpoint_type": 1,
        "include_fenced_brokers": False,
    }
    try:
        answer = yield from ask_broker(request, DESCRIBE_CLUSTER, 0, asked)
    except UpstreamLostError:
        return Answer(None, close=True)
    operations = answer["cluster_authorized_operations"]
    if answer["error_code"] != error_codes.NONE or operations == _UNKNOWN:
        operations = 0
    connection.authorizer = ClusterRights(operations)
    result = handler(request)
    if isinstance(result, (Answer, Deferred)):
        return result
    return (yield from result)
