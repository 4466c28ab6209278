"""An ACL: it allows or denies a user an operation on resources, from a host; and the filters that find ACLs.

>>> alice = Acl(codes.TOPIC, "orders-", codes.PREFIXED, "User:alice", "*", codes.READ, codes.ALLOW)
>>> print(alice)
ALLOW 'User:alice' READ from host '*' on TOPIC PREFIXED 'orders-'
>>> AclFilter(codes.TOPIC, "orders-eu", codes.MATCH, None, None, codes.ANY, codes.ANY).matches(alice)
True

Follows: Kafka `AclBinding`, `AclBindingFilter`, `ResourcePatternFilter`, `AclControlManager.validateNewAcl`.
"""

from typing import NamedTuple

from tidegate.acl import codes

__all__ = ["Acl", "AclFilter", "acl_problem", "known_code"]

_BYTES = 2048  # without its texts
_BYTES_OF_LETTER = 4


class Acl(NamedTuple):
    """One ACL, all of which is its identity; numbers are those of `tidegate.acl.codes`."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    @property
    def memory_bytes(self) -> int:
        """Return the most memory that the ACL and its index entries take, in bytes."""
        letters = len(self.resource_name) + len(self.principal) + len(self.host)
        return _BYTES + _BYTES_OF_LETTER * letters

    def __str__(self) -> str:
        """Return it as the log has it."""
        return (
            f"{codes.PERMISSIONS[self.permission]} {self.principal!r} {codes.OPERATIONS[self.operation]}"
            f" from host {self.host!r} on {codes.RESOURCE_TYPES[self.resource_type]}"
            f" {codes.PATTERN_TYPES[self.pattern_type]} {self.resource_name!r}"
        )


class AclFilter(NamedTuple):
    """A filter for ACLs; None and `ANY` match every value.

    The pattern type `MATCH` finds all patterns that apply to a resource of that name.
    """

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @property
    def exact(self) -> Acl | None:
        """The one ACL that it can find, None where there may be several."""
        resource_type, name, pattern, principal, host, operation, permission = self
        if name is None or principal is None or host is None or pattern < codes.LITERAL:
            return None
        if codes.ANY in (resource_type, operation, permission):
            return None
        return Acl(resource_type, name, pattern, principal, host, operation, permission)

    def matches(self, acl: Acl) -> bool:
        """Return whether it finds `acl`."""
        return (
            self.resource_type in (codes.ANY, acl.resource_type)
            and self.operation in (codes.ANY, acl.operation)
            and self.permission in (codes.ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        name, pattern = self.resource_name, self.pattern_type
        if pattern == codes.MATCH:
            if name is None or name == acl.resource_name:
                return True
            if acl.pattern_type == codes.PREFIXED:
                return name.startswith(acl.resource_name)
            return acl.resource_name == codes.WILDCARD
        return pattern in (codes.ANY, acl.pattern_type) and name in (None, acl.resource_name)


def known_code(number: int, names: tuple[str, ...]) -> int:
    """Return a number from the wire; `UNKNOWN` for one that is not in a table of `tidegate.acl.codes`."""
    return number if 0 <= number < len(names) else codes.UNKNOWN


def acl_problem(acl: Acl) -> str | None:
    """Return why an ACL without `ANY` values cannot be created; None if it can."""
    if acl.resource_type == codes.CLUSTER and acl.resource_name != codes.CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {codes.CLUSTER_NAME}"
    if not acl.resource_name:
        return "Invalid empty resource name"
    if acl.resource_type == codes.UNKNOWN:
        return f"Invalid resourceType {codes.RESOURCE_TYPES[acl.resource_type]}"
    if acl.pattern_type == codes.UNKNOWN:
        return f"Invalid patternType {codes.PATTERN_TYPES[acl.pattern_type]}"
    if acl.operation == codes.UNKNOWN:
        return f"Invalid operation {codes.OPERATIONS[acl.operation]}"
    if acl.permission == codes.UNKNOWN:
        return f"Invalid permissionType {codes.PERMISSIONS[acl.permission]}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal"
            " type from the principal name)"
        )
    return None
