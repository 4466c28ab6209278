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
TOPIC: Final = 2
GROUP: Final = 3
CLUSTER: Final = 4
TRANSACTIONAL_ID: Final = 5
DELEGATION_TOKEN: Final = 6
USER: Final = 7

PATTERN_TYPES: Final = ("UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED")
MATCH: Final = 2
LITERAL: Final = 3
PREFIXED: Final = 4

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
ALL: Final = 2
READ: Final = 3
WRITE: Final = 4
CREATE: Final = 5
DELETE: Final = 6
ALTER: Final = 7
DESCRIBE: Final = 8
CLUSTER_ACTION: Final = 9
DESCRIBE_CONFIGS: Final = 10
ALTER_CONFIGS: Final = 11
IDEMPOTENT_WRITE: Final = 12
CREATE_TOKENS: Final = 13
DESCRIBE_TOKENS: Final = 14
TWO_PHASE_COMMIT: Final = 15

PERMISSIONS: Final = ("UNKNOWN", "ANY", "DENY", "ALLOW")
DENY: Final = 2
ALLOW: Final = 3

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
