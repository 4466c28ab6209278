"""StandardAuthorizer's rules as a table, and how the answers are kept."""

import tracemalloc

import pytest

from tidegate.acl import Acl, AclFilter, Authorizer, codes, parse_super_users
from tidegate.acl.authorizer import MAX_KNOWN
from tidegate.errors import ConfigError
from tidegate.in_slices import run_at_once

HOST = "10.0.0.1"
EVERY_OPERATION = range(codes.READ, codes.TWO_PHASE_COMMIT + 1)


def acl(text: str) -> Acl:
    """Return the ACL of a line: `allow|deny PRINCIPAL OPERATION TYPE PATTERN NAME [HOST]`."""
    permission, principal, operation, resource, pattern, name, *host = text.split()
    return Acl(
        codes.RESOURCE_TYPES.index(resource.upper()),
        name,
        codes.PATTERN_TYPES.index(pattern.upper()),
        f"User:{principal}" if ":" not in principal else principal,
        host[0] if host else "*",
        codes.OPERATIONS.index(operation.upper()),
        codes.PERMISSIONS.index(permission.upper()),
    )


def authorizer_of(*lines: str, **options: bool) -> Authorizer:
    """Return an authorizer with these ACLs."""
    authorizer = Authorizer(super_users=frozenset(("User:root",)), allow_if_no_acl=options.get("open", False))
    authorizer.add_acls(map(acl, lines))
    return authorizer


def allowed(authorizer: Authorizer, user: str, name: str, resource: str = "topic", host: str = HOST) -> str:
    """Return the operations that are allowed, by their names."""
    resource_type = codes.RESOURCE_TYPES.index(resource.upper())
    names = [
        codes.OPERATIONS[operation]
        for operation in EVERY_OPERATION
        if authorizer.authorized(user, host, operation, resource_type, name)
    ]
    return "everything" if len(names) == len(EVERY_OPERATION) else " ".join(names).lower()


CASES = {
    "nothing is allowed without an ACL": ((), "alice", "t", ""),
    "the name": (("allow alice create topic literal t",), "alice", "t", "create"),
    "another name": (("allow alice create topic literal t",), "alice", "t2", ""),
    "another user": (("allow alice create topic literal t",), "bob", "t", ""),
    "read implies describe": (("allow alice read topic literal t",), "alice", "t", "read describe"),
    "write implies describe": (("allow alice write topic literal t",), "alice", "t", "write describe"),
    "delete implies describe": (("allow alice delete topic literal t",), "alice", "t", "delete describe"),
    "alter implies describe": (("allow alice alter topic literal t",), "alice", "t", "alter describe"),
    "alter configs implies describe configs": (
        ("allow alice alter_configs topic literal t",), "alice", "t", "describe_configs alter_configs",
    ),
    "describe implies nothing": (("allow alice describe topic literal t",), "alice", "t", "describe"),
    "all": (("allow alice all topic literal t",), "alice", "t", "everything"),
    "a prefix": (("allow alice create topic prefixed t-",), "alice", "t-1", "create"),
    "a prefix is a prefix of itself": (("allow alice create topic prefixed t-",), "alice", "t-", "create"),
    "no prefix": (("allow alice create topic prefixed t-",), "alice", "t", ""),
    "a literal name is no prefix": (("allow alice create topic literal t",), "alice", "t-1", ""),
    "the wildcard": (("allow alice create topic literal *",), "alice", "t", "create"),
    "a star is a prefix of what begins with it": (("allow alice create topic prefixed *",), "alice", "t", ""),
    "every user": (("allow * create topic literal t",), "alice", "t", "create"),
    "a principal of another type": (("allow Group:alice create topic literal t",), "alice", "t", ""),
    "the host": (("allow alice create topic literal t 10.0.0.1",), "alice", "t", "create"),
    "another host": (("allow alice create topic literal t 10.0.0.2",), "alice", "t", ""),
    "deny wins": (
        ("allow alice all topic literal t", "deny alice describe topic literal t"), "alice", "t",
        "read write create delete alter cluster_action describe_configs alter_configs idempotent_write"
        " create_tokens describe_tokens two_phase_commit",
    ),
    "deny of all": (("allow alice all topic literal t", "deny alice all topic literal *"), "alice", "t", ""),
    "deny implies nothing": (
        ("allow alice read topic literal t", "deny alice read topic prefixed t"), "alice", "t", "describe",
    ),
    "deny of every user": (("allow alice read topic literal t", "deny * read topic literal t"), "alice", "t",
                           "describe"),
    "deny elsewhere": (("allow alice create topic literal t", "deny alice create topic literal t 10.0.0.2"),
                       "alice", "t", "create"),
    "several add up": (
        ("allow alice read topic literal t", "allow * write topic prefixed t", "allow alice create topic literal *"),
        "alice", "t", "read write create describe",
    ),
    "super users": (("deny root all topic literal t", "deny * all topic literal *"), "root", "t", "everything"),
    "another type of resource": (("allow alice all group literal t",), "alice", "t", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rules(case: str) -> None:
    """Every rule, as StandardAuthorizer has it."""
    lines, user, name, expected = CASES[case]
    assert allowed(authorizer_of(*lines), user, name) == expected


OPEN = {
    "no ACL at all": ((), "everything"),
    "one of another resource": (("allow bob read topic literal other",), "everything"),
    "one of another type": (("allow bob read group literal t",), "everything"),
    "one of another user": (("allow bob read topic literal t",), ""),
    "a prefix of another user's": (("allow bob read topic prefixed t",), ""),
    "the wildcard of another user's": (("allow bob read topic literal *",), ""),
    "one of another host": (("allow alice all topic literal t 10.0.0.2",), ""),
    "one of the user's for something else": (("allow alice create topic literal t",), "create"),
    "a denial of the user's for something else": (("deny alice create topic literal t",), ""),
}


@pytest.mark.parametrize("case", OPEN)
def test_without_an_acl_everybody_may(case: str) -> None:
    """With `allow.everyone.if.no.acl.found` a resource without any ACL, of anybody's, is open."""
    lines, expected = OPEN[case]
    assert allowed(authorizer_of(*lines, open=True), "alice", "t") == expected


@pytest.mark.parametrize(
    ("written", "client", "counts"),
    [
        ("::1", "::1", True),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("192.0.2.7", "::ffff:192.0.2.7", True),
        ("fe80:0:0:0:0:0:0:1", "fe80::1%eth0", True),
        ("::2", "::1", False),
    ],
)
def test_ipv6_addresses_may_be_written_short_or_as_java_does(written: str, client: str, counts: bool) -> None:
    """The host of an ACL is compared with both forms of a client's address."""
    authorizer = authorizer_of(f"allow alice create topic literal t {written}")
    assert (allowed(authorizer, "alice", "t", host=client) == "create") is counts


def test_a_change_holds_at_once() -> None:
    """What was answered before is forgotten when an ACL is created or deleted."""
    authorizer = authorizer_of()
    read = acl("allow alice read topic literal t")
    assert allowed(authorizer, "alice", "t") == ""
    authorizer.add_acls([read])
    assert allowed(authorizer, "alice", "t") == "read describe"
    authorizer.remove([read])
    assert allowed(authorizer, "alice", "t") == ""
    assert authorizer.version == 3


def test_what_is_deleted_leaves_nothing_behind() -> None:
    """After all ACLs are deleted everything is as at the beginning, and twice is as once."""
    lines = [lines for lines, *_ in CASES.values()] + [lines for lines, _ in OPEN.values()]
    acls = [acl(line) for some in lines for line in some]
    authorizer = authorizer_of(open=True)
    authorizer.add_acls(acls)
    authorizer.add_acls(acls)
    assert len(authorizer) == len(set(acls))
    authorizer.remove(acls)
    authorizer.remove(acls)
    assert (len(authorizer), authorizer.room_bytes) == (0, Authorizer().room_bytes)
    assert allowed(authorizer, "alice", "t") == "everything"
    assert not authorizer._of_principal
    assert all(patterns.empty and not patterns.lengths for patterns in authorizer._of_anybody.values())


BY_TYPE = {
    "nothing": ((), False),
    "a topic": (("allow alice write topic literal t",), True),
    "all of a topic": (("allow alice all topic literal t",), True),
    "something else": (("allow alice read topic literal t",), False),
    "another host": (("allow alice write topic literal t 10.0.0.2",), False),
    "another user": (("allow bob write topic literal t",), False),
    "every user": (("allow * write topic prefixed t",), True),
    "the topic denied": (("allow alice write topic literal t", "deny * write topic literal t"), False),
    "its prefix denied": (("allow alice write topic literal tt", "deny alice all topic prefixed t"), False),
    "a prefix of it denied": (("allow alice write topic prefixed tt", "deny alice write topic prefixed t"), False),
    "a longer prefix denied": (("allow alice write topic prefixed t", "deny alice write topic prefixed tt"), True),
    "a literal name does not deny a prefix": (
        ("allow alice write topic prefixed t", "deny alice write topic literal t"), True,
    ),
    "everything denied": (("allow alice write topic literal t", "deny alice write topic literal *"), False),
    "the wildcard, but some": (("allow alice write topic literal *", "deny alice write topic literal t"), True),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_TYPE)
def test_any_resource_of_a_type(case: str) -> None:
    """Whether there is any resource that a user may write to (KIP-679); asked twice it is the same."""
    lines, expected = BY_TYPE[case]
    authorizer = authorizer_of(*lines)
    for _ in range(2):
        asked = authorizer.authorized_by_type_in_slices("alice", HOST, codes.WRITE, codes.TOPIC)
        assert run_at_once(asked) is expected


def test_super_users_may_write_anywhere() -> None:
    """Whatever is denied."""
    authorizer = authorizer_of("deny * all topic literal *")
    assert run_at_once(authorizer.authorized_by_type_in_slices("root", HOST, codes.WRITE, codes.TOPIC))


def test_kept_answers_are_bounded() -> None:
    """Of long names nothing is kept, and of others no more than a number."""
    authorizer = authorizer_of("allow alice read topic prefixed t")
    for number in range(MAX_KNOWN + 10):
        assert authorizer.authorized("alice", HOST, codes.READ, codes.TOPIC, f"t{number}")
    assert len(authorizer._known) == 10
    assert authorizer.authorized("alice", HOST, codes.READ, codes.TOPIC, "t" * 32_767)
    assert not authorizer.authorized("a" * 32_767, HOST, codes.READ, codes.TOPIC, "t")
    assert len(authorizer._known) == 10


def test_acls_are_counted_as_no_less_than_they_take() -> None:
    """The bound in bytes holds for ACLs that share nothing."""
    lines = [
        Acl(
            codes.TOPIC, f"topic-{n}", codes.PREFIXED, f"User:{n}", f"10.0.{n % 7}.1", codes.READ, codes.ALLOW
        )
        for n in range(5000)
    ]
    authorizer = Authorizer()
    tracemalloc.start()
    try:
        authorizer.add_acls(
            [
                Acl(*(part.encode().decode() if isinstance(part, str) else part for part in line))
                for line in lines
            ]
        )
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= sum(line.memory_bytes for line in lines)


def test_filters_find_what_they_say() -> None:
    """An exact filter finds one ACL, `MATCH` what a resource falls under, `ANY` all."""
    acls = [
        acl("allow alice read topic literal t-1"),
        acl("allow alice read topic prefixed t-"),
        acl("allow * read topic literal *"),
        acl("deny bob write group literal t-1 10.0.0.1"),
    ]
    authorizer = Authorizer()
    authorizer.add_acls(acls)

    def found(*wanted: object) -> list[int]:
        return [acls.index(each) for each in run_at_once(authorizer.matching_in_slices(AclFilter(*wanted)))]  # type: ignore[arg-type]

    assert found(codes.ANY, None, codes.ANY, None, None, codes.ANY, codes.ANY) == [0, 1, 2, 3]
    assert found(codes.TOPIC, "t-1", codes.MATCH, None, None, codes.ANY, codes.ANY) == [0, 1, 2]
    assert found(codes.TOPIC, "t-1", codes.LITERAL, None, None, codes.ANY, codes.ANY) == [0]
    assert found(codes.ANY, "t-1", codes.ANY, None, None, codes.ANY, codes.ANY) == [0, 3]
    assert found(codes.ANY, None, codes.PREFIXED, None, None, codes.ANY, codes.ANY) == [1]
    assert found(codes.ANY, None, codes.MATCH, "User:alice", None, codes.ANY, codes.ANY) == [0, 1]
    assert found(codes.ANY, None, codes.ANY, None, "10.0.0.1", codes.ANY, codes.ANY) == [3]
    assert found(codes.ANY, None, codes.ANY, None, None, codes.WRITE, codes.ANY) == [3]
    assert found(codes.ANY, None, codes.ANY, None, None, codes.ANY, codes.DENY) == [3]
    assert found(codes.UNKNOWN, None, codes.ANY, None, None, codes.ANY, codes.ANY) == []
    assert found(*acls[3]) == [3]
    assert found(*acls[3][:-1], codes.ALLOW) == []


def test_super_users_are_read_as_kafka_does() -> None:
    """Principals lie between semicolons, so that they may have commas."""
    assert parse_super_users(" User:admin ; User:CN=b,O=x;;") == {"User:admin", "User:CN=b,O=x"}
    assert parse_super_users("") == frozenset()
    with pytest.raises(ConfigError, match=r"super\.users has 'admin', expected TYPE:NAME"):
        parse_super_users("User:a;admin")
