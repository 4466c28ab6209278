"""The authorizer against its rules, whatever ACLs come and go: the indexes and what is kept change no answer."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.acls import NaiveAuthorizer

from tidegate.acl import Acl, AclFilter, Authorizer, codes
from tidegate.in_slices import run_at_once

NAMES = ("a", "ab", "abc", "abd", "b", "*", "ü", "a" * 300)
USERS = ("alice", "bob", "*", "root", "ü" * 300)
HOSTS = ("10.0.0.1", "10.0.0.2")
TYPES = (codes.TOPIC, codes.GROUP)
OPERATIONS = range(codes.ALL, codes.TWO_PHASE_COMMIT + 1)

acls = st.builds(
    Acl,
    resource_type=st.sampled_from(TYPES),
    resource_name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from((codes.LITERAL, codes.PREFIXED)),
    principal=st.sampled_from([f"User:{user}" for user in USERS] + ["Group:alice"]),
    host=st.sampled_from((*HOSTS, "*", "elsewhere")),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from((codes.ALLOW, codes.ALLOW, codes.DENY)),
)
changes = st.lists(st.tuples(st.booleans(), st.lists(acls, max_size=6)), min_size=1, max_size=8)
questions = st.lists(
    st.tuples(
        st.sampled_from(USERS), st.sampled_from(HOSTS), st.sampled_from(TYPES), st.sampled_from(NAMES)
    ),
    min_size=1,
    max_size=10,
)  # fmt: skip
filters = st.builds(
    AclFilter,
    resource_type=st.sampled_from((codes.ANY, *TYPES)),
    resource_name=st.sampled_from((None, *NAMES)),
    pattern_type=st.sampled_from((codes.ANY, codes.MATCH, codes.LITERAL, codes.PREFIXED)),
    principal=st.sampled_from((None, "User:alice", "User:*")),
    host=st.sampled_from((None, "*", "10.0.0.1")),
    operation=st.sampled_from((codes.ANY, codes.READ, codes.ALL)),
    permission=st.sampled_from((codes.ANY, codes.ALLOW, codes.DENY)),
)


@settings(max_examples=300, deadline=None)
@given(changes=changes, questions=questions, wanted=filters, open_to_all=st.booleans())
def test_every_answer_is_that_of_the_rules(
    changes: list[tuple[bool, list[Acl]]],
    questions: list[tuple[str, str, int, str]],
    wanted: AclFilter,
    open_to_all: bool,
) -> None:
    """After each change the same questions have the answers of whoever looks at all ACLs; filters find the same."""
    authorizer = Authorizer(super_users=frozenset(("User:root",)), allow_if_no_acl=open_to_all)
    there: dict[Acl, None] = {}
    for create, some in changes:
        if create:
            authorizer.add_acls(some)
            there |= dict.fromkeys(some)
        else:
            authorizer.remove(some)
            there = {acl: None for acl in there if acl not in some}
        naive = NaiveAuthorizer(there, ["User:root"], allow_if_no_acl=open_to_all)
        for user, host, resource_type, name in questions:
            for operation in OPERATIONS:
                if operation != codes.ALL:
                    asked = (user, host, operation, resource_type, name)
                    assert authorizer.authorized(*asked) is naive.authorized(*asked), asked
        assert set(authorizer) == set(there)
        found = run_at_once(authorizer.matching_in_slices(wanted))
        assert sorted(found) == sorted(acl for acl in there if wanted.matches(acl))
