"""Decides what a user may do, from all ACLs, by the rules of Kafka's StandardAuthorizer.

>>> from tidegate.acl.bindings import Acl
>>> authorizer = Authorizer(super_users=frozenset(("User:admin",)))
>>> authorizer.add_acls([Acl(codes.TOPIC, "orders-", codes.PREFIXED, "User:alice", "*", codes.READ, codes.ALLOW)])
>>> [authorizer.authorized("alice", "10.0.0.1", operation, codes.TOPIC, "orders-eu")
...  for operation in (codes.READ, codes.DESCRIBE, codes.WRITE)]
[True, True, False]

1. A user in `super.users` may do everything.
2. The ACLs of a resource have its type, and name it literally, by a prefix, or by the literal name `*`. Of these, the
   ACLs of the user or of `User:*` count, if they are for the client's host or for `*`.
3. If one of them denies the operation, or `ALL`, the operation is denied. Else it is allowed if one of them allows it:
   `ALL` allows everything; `READ`, `WRITE`, `DELETE` and `ALTER` allow `DESCRIBE`, and `ALTER_CONFIGS` allows
   `DESCRIBE_CONFIGS`. Denied operations imply no others.
4. Without such an ACL the operation is refused, unless the resource has no ACL for any user and
   `allow.everyone.if.no.acl.found` is set.

A question costs a few lookups, however many ACLs exist: they are indexed by resource type and principal, then by name
and by prefix, then by host, with two bit sets of operations for each host. Answers are kept until an ACL changes.

Follows: Kafka `StandardAuthorizer`, `StandardAuthorizerData`, `Authorizer.authorizeByResourceType`, KIP-11, KIP-290.
Differs: a client's IPv6 address may be written in an ACL in Java's form, `0:0:0:0:0:0:0:1`, or short.
"""

import ipaddress
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from tidegate.acl import codes
from tidegate.acl.bindings import Acl, AclFilter
from tidegate.errors import ConfigError

__all__ = ["MAX_ACL_BYTES", "MAX_KNOWN", "MAX_TEXT", "Authorizer", "parse_super_users"]

MAX_ACL_BYTES = 128 << 20
"""Most memory of all ACLs, as `Acl.memory_bytes` counts it: some 60,000 with short names."""
MAX_TEXT = 1024
"""Letters of a resource name, of a principal and of a host in an ACL. A question looks at prefixes of each length."""
MAX_KNOWN = 16_384
"""Answers that are kept; when there are more, all are forgotten."""
_LONGEST_KNOWN = 256  # letters of a user or of a resource in them: 16 MB in all. A topic has at most 249
_AT_ONCE = 500  # ACLs looked at between two yields: less than a millisecond

_EVERYTHING = (1 << 32) - 1
_ALL_BIT = 1 << codes.ALL
_IMPLY_DESCRIBE = sum(1 << operation for operation in (codes.READ, codes.WRITE, codes.DELETE, codes.ALTER))
_EVERY_USER = f"User:{codes.WILDCARD}"
_ANY_NAME = "hardcode"  # Kafka `Authorizer.authorizeByResourceType` asks for a resource of this name first

_Hosts = dict[str, tuple[int, int]]
"""Operations that are allowed and denied, as bit sets, by host."""
T = TypeVar("T")


class _Patterns(Generic[T]):
    """Values by resource name and by prefix, for resources of one type."""

    __slots__ = ("_times", "by_pattern", "lengths")

    def __init__(self) -> None:
        self.by_pattern: dict[int, dict[str, T]] = {codes.LITERAL: {}, codes.PREFIXED: {}}
        self.lengths: list[int] = []  # of the prefixes, each once, the shortest first
        self._times: dict[int, int] = {}

    def of(self, name: str) -> list[T]:
        """Return what there is for a resource of this name."""
        literal, prefixed = self.by_pattern.values()
        found = [literal[key] for key in {name, codes.WILDCARD} if key in literal]
        for length in self.lengths:
            if length > len(name):
                break
            prefix = name[:length]
            if prefix in prefixed:
                found.append(prefixed[prefix])
        return found

    def set_value(self, pattern_type: int, name: str, value: T) -> None:
        """Keep a value in place of the one before."""
        values = self.by_pattern[pattern_type]
        if pattern_type == codes.PREFIXED and name not in values:
            self._count(len(name), 1)
        values[name] = value

    def remove(self, pattern_type: int, name: str) -> None:
        """Forget a value."""
        del self.by_pattern[pattern_type][name]
        if pattern_type == codes.PREFIXED:
            self._count(len(name), -1)

    def _count(self, length: int, more: int) -> None:
        times = self._times[length] = self._times.get(length, 0) + more
        if not times:
            del self._times[length]
        if times in (0, more):
            self.lengths = sorted(self._times)

    @property
    def empty(self) -> bool:
        """Return whether no value is left."""
        return not any(self.by_pattern.values())


class Authorizer:
    """All ACLs of a cluster, and what follows from them.

    super_users: principals, such as `User:admin`. allow_if_no_acl: what holds for resources without any ACL.
    most_bytes: what all ACLs may take.
    version: grows with every change: answers that were kept may be stale then.
    """

    def __init__(
        self,
        *,
        super_users: frozenset[str] = frozenset(),
        allow_if_no_acl: bool = False,
        most_bytes: int = MAX_ACL_BYTES,
    ) -> None:
        self.version = 0
        self._most_bytes = most_bytes
        self._acl_bytes = 0
        self._super_users = super_users
        self._allow_if_no_acl = allow_if_no_acl
        self._acls: dict[Acl, None] = {}
        self._of_principal: dict[tuple[int, str], _Patterns[_Hosts]] = {}
        self._of_anybody: dict[int, _Patterns[int]] = {}  # how many ACLs there are of a pattern
        self._known: dict[tuple[str, str, int, str], int] = {}
        self._known_by_type: dict[tuple[str, str, int, int], bool] = {}

    def __len__(self) -> int:
        return len(self._acls)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._acls

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    # --- questions ------------------------------------------------------------------------------------------------

    def authorized(self, user: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        """Return whether a user may do something to a resource, from a host."""
        return bool(self.permitted(user, host, resource_type, name) >> operation & 1)

    def permitted(self, user: str, host: str, resource_type: int, name: str) -> int:
        """Return all that a user may do to a resource, from a host: a bit set by the numbers of operations."""
        key = (user, host, resource_type, name)
        known = self._known.get(key)
        if known is None:
            known = self._decide(user, host, resource_type, name)
            if len(user) <= _LONGEST_KNOWN and len(name) <= _LONGEST_KNOWN:
                if len(self._known) >= MAX_KNOWN:
                    self._known = {}
                self._known[key] = known
        return known

    def _decide(self, user: str, host: str, resource_type: int, name: str) -> int:
        if f"User:{user}" in self._super_users:
            return _EVERYTHING
        hosts = _hosts(host)
        allowed = denied = 0
        has_acl = False
        for principal in {f"User:{user}", _EVERY_USER}:
            patterns = self._of_principal.get((resource_type, principal))
            for by_host in () if patterns is None else patterns.of(name):
                has_acl = True
                for each in hosts:
                    if each in by_host:
                        bits = by_host[each]
                        allowed |= bits[0]
                        denied |= bits[1]
        if denied & _ALL_BIT:
            return 0
        if not has_acl and self._allow_if_no_acl:
            anybody = self._of_anybody.get(resource_type)
            return _EVERYTHING if anybody is None or not anybody.of(name) else 0
        return _with_implied(allowed) & ~denied

    def authorized_by_type_in_slices(
        self, user: str, host: str, operation: int, resource_type: int
    ) -> Generator[None, None, bool]:
        """Return whether a user may do something to any resource of a type, whether or not there is one.

        Follows: Kafka `Authorizer.authorizeByResourceType`, KIP-679. What one operation implies does not count.
        """
        if self.authorized(user, host, operation, resource_type, _ANY_NAME):
            return True
        key, version = (user, host, operation, resource_type), self.version
        known = self._known_by_type.get(key)
        if known is None:
            known = yield from self._decide_by_type(user, host, operation, resource_type)
            if version == self.version and len(user) <= _LONGEST_KNOWN:
                if len(self._known_by_type) >= MAX_KNOWN:
                    self._known_by_type = {}
                self._known_by_type[key] = known
        return known

    def _decide_by_type(
        self, user: str, host: str, operation: int, resource_type: int
    ) -> Generator[None, None, bool]:
        wanted = _ALL_BIT | 1 << operation
        hosts = _hosts(host)
        allowed: dict[int, set[str]] = {codes.LITERAL: set(), codes.PREFIXED: set()}
        denied: dict[int, set[str]] = {codes.LITERAL: set(), codes.PREFIXED: set()}
        for principal in {f"User:{user}", _EVERY_USER}:
            patterns = self._of_principal.get((resource_type, principal))
            for pattern_type, values in [] if patterns is None else patterns.by_pattern.items():
                for number, (name, by_host) in enumerate(list(values.items())):
                    for bits in (by_host[each] for each in hosts if each in by_host):
                        if bits[0] & wanted:
                            allowed[pattern_type].add(name)
                        if bits[1] & wanted:
                            denied[pattern_type].add(name)
                    if number % _AT_ONCE == 0:
                        yield
        if codes.WILDCARD in denied[codes.LITERAL]:
            return False
        if codes.WILDCARD in allowed[codes.LITERAL]:
            return True
        lengths = sorted(set(map(len, denied[codes.PREFIXED])))
        for pattern_type, names in allowed.items():
            for number, name in enumerate(names):
                if not (pattern_type == codes.LITERAL and name in denied[codes.LITERAL]) and not any(
                    name[:length] in denied[codes.PREFIXED] for length in lengths if length <= len(name)
                ):
                    return True
                if number % 10 == 0:
                    yield
        return False

    def matching_in_slices(self, wanted: AclFilter) -> Generator[None, None, list[Acl]]:
        """Return the ACLs that a filter finds."""
        exact = wanted.exact
        if exact is not None:
            return [exact] if exact in self._acls else []
        found: list[Acl] = []
        left = iter(list(self._acls))
        while some := list(islice(left, _AT_ONCE)):
            found += filter(wanted.matches, some)
            yield
        return found

    # --- changes --------------------------------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """Return the memory left for more ACLs, in bytes (`Acl.memory_bytes`)."""
        return self._most_bytes - self._acl_bytes

    def add_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs; ignore those that are already in force."""
        for acl in acls:
            if acl not in self._acls:
                self._acls[acl] = None
                self._acl_bytes += acl.memory_bytes
                self._index(acl)
        self._forget_known()

    def remove(self, acls: Iterable[Acl]) -> None:
        """Remove ACLs; ignore those that are not in force."""
        for acl in acls:
            if acl in self._acls:
                del self._acls[acl]
                self._acl_bytes -= acl.memory_bytes
                self._unindex(acl)
        self._forget_known()

    def _forget_known(self) -> None:
        self._known, self._known_by_type = {}, {}
        self.version += 1

    def _index(self, acl: Acl) -> None:
        pattern_type, name = acl.pattern_type, acl.resource_name
        patterns = self._of_principal.setdefault((acl.resource_type, acl.principal), _Patterns())
        by_host = patterns.by_pattern[pattern_type].get(name)
        if by_host is None:
            by_host = {}
            patterns.set_value(pattern_type, name, by_host)
        host, bit = acl.host, 1 << acl.operation
        allowed, denied = by_host.get(host, (0, 0))
        by_host[host] = (allowed | bit, denied) if acl.permission == codes.ALLOW else (allowed, denied | bit)
        anybody = self._of_anybody.setdefault(acl.resource_type, _Patterns())
        anybody.set_value(pattern_type, name, anybody.by_pattern[pattern_type].get(name, 0) + 1)

    def _unindex(self, acl: Acl) -> None:
        pattern_type, name = acl.pattern_type, acl.resource_name
        key = acl.resource_type, acl.principal
        patterns = self._of_principal[key]
        by_host = patterns.by_pattern[pattern_type][name]
        host, bit = acl.host, 1 << acl.operation
        allowed, denied = by_host[host]
        if acl.permission == codes.ALLOW:
            allowed &= ~bit
        else:
            denied &= ~bit
        by_host[host] = allowed, denied
        if not (allowed or denied):
            del by_host[host]
        if not by_host:
            patterns.remove(pattern_type, name)
        if patterns.empty:
            del self._of_principal[key]
        anybody = self._of_anybody[acl.resource_type]
        count = anybody.by_pattern[pattern_type][name] - 1
        if count:
            anybody.set_value(pattern_type, name, count)
        else:
            anybody.remove(pattern_type, name)


def parse_super_users(text: str) -> frozenset[str]:
    """Return the principals of a text such as `User:admin;User:CN=broker,O=example`.

    Raises `ConfigError` where one has no type.
    """
    principals = frozenset(part.strip() for part in text.split(";") if part.strip())
    for principal in sorted(principals):
        if ":" not in principal:
            raise ConfigError(
                f"super.users has {principal!r}, expected TYPE:NAME, such as User:admin",
                hint="separate principals by ; because names may contain commas",
            )
    return principals


def _with_implied(allowed: int) -> int:
    """Return the operations that are allowed with these."""
    if allowed & _ALL_BIT:
        return _EVERYTHING
    if allowed & _IMPLY_DESCRIBE:
        allowed |= 1 << codes.DESCRIBE
    if allowed >> codes.ALTER_CONFIGS & 1:
        allowed |= 1 << codes.DESCRIBE_CONFIGS
    return allowed


def _hosts(host: str) -> tuple[str, ...]:
    """Return what the host of an ACL may be to count for a client's address."""
    if ":" not in host:
        return host, codes.WILDCARD
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped), codes.WILDCARD
    in_java = ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))
    return str(address), in_java, codes.WILDCARD
