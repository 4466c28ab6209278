"""Rights to the configs of a resource: which ACLs count for its kind, and with which error a client is refused.

Follows: Kafka `ConfigHelper`, `ControllerApis.authorizeAlterResource`.
"""

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.server.handler import Request

__all__ = ["refusal_of"]

_TOPIC, _GROUP = 2, 32  # of Kafka's `ConfigResource.Type`; all others count as the cluster
_Refusal = tuple[int, str]
_REFUSALS: dict[int, _Refusal] = {
    acl.TOPIC: (error_codes.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    acl.GROUP: (error_codes.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    acl.CLUSTER: (error_codes.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
}
_TYPES = {_TOPIC: acl.TOPIC, _GROUP: acl.GROUP}


def refusal_of(request: Request, operation: int, kind: int, name: str) -> _Refusal | None:
    """Return the error and text for a client that may not do something to the configs of a resource, else None."""
    resource_type = _TYPES.get(kind, acl.CLUSTER)
    resource_name = acl.CLUSTER_NAME if resource_type == acl.CLUSTER else name
    return None if request.authorized(operation, resource_type, resource_name) else _REFUSALS[resource_type]
