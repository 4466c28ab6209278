"""StandardAuthorizer's rules as they are written down: every ACL is looked at, one by one."""

from collections.abc import Iterable

from tidegate.acl import Acl, codes

__all__ = ["NaiveAuthorizer"]

_IMPLYING = {
    codes.DESCRIBE: (codes.DESCRIBE, codes.READ, codes.WRITE, codes.DELETE, codes.ALTER),
    codes.DESCRIBE_CONFIGS: (codes.DESCRIBE_CONFIGS, codes.ALTER_CONFIGS),
}


class NaiveAuthorizer:
    """Answers as `tidegate.acl.Authorizer` should."""

    def __init__(self, acls: Iterable[Acl], super_users: Iterable[str], *, allow_if_no_acl: bool) -> None:
        self._acls = list(acls)
        self._super_users = set(super_users)
        self._allow_if_no_acl = allow_if_no_acl

    def authorized(self, user: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        """Return whether a user may do something to a resource, from a host."""
        if f"User:{user}" in self._super_users:
            return True
        of_resource = [acl for acl in self._acls if acl.resource_type == resource_type and _names(acl, name)]
        if not of_resource:
            return self._allow_if_no_acl
        counting = [acl for acl in of_resource if _counts(acl, user, host, operation)]
        return bool(counting) and all(acl.permission == codes.ALLOW for acl in counting)


def _names(acl: Acl, name: str) -> bool:
    if acl.pattern_type == codes.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, "*")


def _counts(acl: Acl, user: str, host: str, operation: int) -> bool:
    if acl.principal not in (f"User:{user}", "User:*") or acl.host not in (host, "*"):
        return False
    if acl.operation in (operation, codes.ALL):
        return True
    return acl.permission == codes.ALLOW and acl.operation in _IMPLYING.get(operation, ())
