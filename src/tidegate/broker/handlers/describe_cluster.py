"""DescribeCluster (key 60), versions 0-2. KIP-700, KIP-919 (endpoint type, from 1).

The first broker is also the controller. A request for endpoints of controllers gets error 114, as this is a broker;
an unknown endpoint type gets error 115.
The authorized operations on the cluster are answered if the client asks for them and has DESCRIBE on it, else 0.
The request has no arrays, so it is not handled in slices.
"""

from tidegate import error_codes
from tidegate.broker.cluster import NO_OPERATIONS, ClusterView, cluster_operations
from tidegate.server.requests.handler import Answer, Request
from tidegate.storage.storage import Storage

__all__ = ["handle_describe_cluster"]

BROKERS, CONTROLLERS = 1, 2
_WRONG_ENDPOINT_TEXT = (
    "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
)


def handle_describe_cluster(storage: Storage, cluster: ClusterView, request: Request) -> Answer:
    """Describe the brokers of the cluster."""
    body = request.body()
    wanted = body.get("endpoint_type", BROKERS)
    if wanted != BROKERS:
        error_code, text = error_codes.MISMATCHED_ENDPOINT_TYPE, _WRONG_ENDPOINT_TEXT
        if wanted != CONTROLLERS:
            error_code, text = (
                error_codes.UNSUPPORTED_ENDPOINT_TYPE,
                f"Unsupported endpoint type {wanted}",
            )
        return request.answer(
            {
                "throttle_time_ms": 0,
                "error_code": error_code,
                "error_message": text,
                "endpoint_type": BROKERS,
                "cluster_id": "",
                "controller_id": -1,
                "brokers": [],
                "cluster_authorized_operations": NO_OPERATIONS,
            }
        )
    asked = body["include_cluster_authorized_operations"]
    return request.answer(
        {
            "throttle_time_ms": 0,
            "error_code": error_codes.NONE,
            "error_message": None,
            "endpoint_type": BROKERS,
            "cluster_id": storage.cluster_id,
            "controller_id": cluster.controller_id,
            "brokers": [
                {
                    "broker_id": broker.id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": None,
                    "is_fenced": False,
                }
                for broker in cluster.brokers(request.connection)
            ],
            "cluster_authorized_operations": cluster_operations(request) if asked else NO_OPERATIONS,
        }
    )
