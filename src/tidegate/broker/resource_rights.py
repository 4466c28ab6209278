"""Rights to the configs of a resource: the ACLs that apply to each type, and the error for a client without the right.

Follows: Kafka `ConfigHelper`, `ControllerApis.authorizeAlterResource`.
"""

import re

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.quota.measure.throttle import MAX_INT32, MIN_INT32
from tidegate.server.requests.handler import Request

__all__ = [
    "CLIENT_METRICS",
    "GROUP",
    "KINDS",
    "LOGGERS",
    "NODE",
    "TOPIC",
    "UNAUTHORIZED",
    "is_int",
    "refusal_of",
]

TOPIC, NODE, LOGGERS, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Types of resources that have settings. Source: Kafka `ConfigResource.Type`."""
KINDS = frozenset((TOPIC, NODE, LOGGERS, CLIENT_METRICS, GROUP))
_Refusal = tuple[int, str]
_CODES = {
    acl.TOPIC: error_codes.TOPIC_AUTHORIZATION_FAILED,
    acl.GROUP: error_codes.GROUP_AUTHORIZATION_FAILED,
    acl.CLUSTER: error_codes.CLUSTER_AUTHORIZATION_FAILED,
}
UNAUTHORIZED = frozenset(_CODES.values())
"""Errors of a client without permission."""
_TYPES = {TOPIC: acl.TOPIC, GROUP: acl.GROUP}  # all others count as the cluster
_INT = re.compile(r"[+-]?\d{1,20}")


def refusal_of(request: Request, operation: int, kind: int, name: str) -> _Refusal | None:
    """Return the error and text for a client without permission for the configs of a resource, else None."""
    resource_type = _TYPES.get(kind, acl.CLUSTER)
    resource_name = acl.CLUSTER_NAME if resource_type == acl.CLUSTER else name
    if request.authorized(operation, resource_type, resource_name):
        return None
    error_code = _CODES[resource_type]
    return error_code, error_codes.TEXTS[error_code]


def is_int(text: str) -> bool:
    """Return whether Java reads the text as an int, which the number of a node is."""
    return _INT.fullmatch(text) is not None and MIN_INT32 <= int(text) <= MAX_INT32
