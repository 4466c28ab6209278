"""Kafka's numbers of resource types, pattern types, operations and permissions, as ACLs have them on the wire.

`UNKNOWN` and `ANY` are the first two of each. Handlers import the module under the name `acl`: `acl.READ, acl.TOPIC`.
Source: Kafka `ResourceType`, `PatternType`, `AclOperation`, `AclPermissionType`.
"""

from typing import Final

__all__ = [
    "ALL",
    "ALLOW",
    "ALTER",
    "ALTER_CONFIGS",
    "ANY",
    "CLUSTER",
    "CLUSTER_ACTION",
    "CLUSTER_NAME",
    "CREATE",
    "CREATE_TOKENS",
    "DELEGATION_TOKEN",
    "DELETE",
    "DENY",
    "DESCRIBE",
    "DESCRIBE_CONFIGS",
    "DESCRIBE_TOKENS",
    "GROUP",
    "IDEMPOTENT_WRITE",
    "LITERAL",
    "MATCH",
    "OPERATIONS",
    "PATTERN_TYPES",
    "PERMISSIONS",
    "PREFIXED",
    "READ",
    "RESOURCE_TYPES",
    "TOPIC",
    "TRANSACTIONAL_ID",
    "TWO_PHASE_COMMIT",
    "UNKNOWN",
    "USER",
    "WILDCARD",
    "WRITE",
    "supported_operations",
]

UNKNOWN: Final = 0
ANY: Final = 1

RESOURCE_TYPES: Final = (
    "UNKNOWN",
    "ANY",
    "TOPIC",
    "GROUP",
    "CLUSTER",
    "TRANSACTIONAL_ID",
    "DELEGATION_TOKEN",
    "USER",
)
"""Names by number; so are the next three."""
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(2, 8)

PATTERN_TYPES: Final = ("UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED")
MATCH, LITERAL, PREFIXED = range(2, 5)

OPERATIONS: Final = (
    "UNKNOWN",
    "ANY",
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
    "CREATE_TOKENS",
    "DESCRIBE_TOKENS",
    "TWO_PHASE_COMMIT",
)
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(2, 10)
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, CREATE_TOKENS, DESCRIBE_TOKENS, TWO_PHASE_COMMIT = range(
    10, 16
)

PERMISSIONS: Final = ("UNKNOWN", "ANY", "DENY", "ALLOW")
DENY, ALLOW = range(2, 4)

CLUSTER_NAME: Final = "kafka-cluster"
"""The one name of the resource type cluster."""
WILDCARD: Final = "*"
"""As a literal resource name: every name; as a host: every host; in `User:*`: every user."""


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


_SUPPORTED: Final = {
    TOPIC: _bits(READ, WRITE, CREATE, DESCRIBE, DELETE, ALTER, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: _bits(READ, DESCRIBE, DELETE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: _bits(
        CREATE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, ALTER, DESCRIBE
    ),
    TRANSACTIONAL_ID: _bits(DESCRIBE, WRITE, TWO_PHASE_COMMIT),
    DELEGATION_TOKEN: _bits(DESCRIBE),
    USER: _bits(CREATE_TOKENS, DESCRIBE_TOKENS),
}


def supported_operations(resource_type: int) -> int:
    """Return the operations that there are on a type of resource, as a bit set by their numbers.

    >>> supported_operations(TOPIC), supported_operations(CLUSTER)
    (3576, 8096)

    Follows: Kafka `AclEntry.supportedOperations`.
    """
    return _SUPPORTED[resource_type]
