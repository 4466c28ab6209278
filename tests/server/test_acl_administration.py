"""The administration of ACLs over a store in memory."""

from collections.abc import Iterable, Sequence

from tests.unit.acl.test_authorizer import acl

from tidegate.acl import Acl, Authorizer, codes
from tidegate.error_codes import POLICY_VIOLATION
from tidegate.in_slices import run_at_once
from tidegate.server.administration.acl_administration import AclAdministration
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Connection
from tidegate.server.settings.config import ServerConfig

AUDIT = Audit(Connection(1, "PLAINTEXT", "127.0.0.1", "127.0.0.1", 9092))
READ = acl("allow alice read topic literal t")
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class MemoryAclStore:
    """Keeps ACLs in a list."""

    def __init__(self, *acls: Acl) -> None:
        self.acls = list(acls)

    def load_acls(self) -> Iterable[Acl]:
        """Return what was kept."""
        return self.acls

    def create_acls(self, acls: Sequence[Acl]) -> None:
        """Keep them."""
        self.acls += acls

    def delete_acls(self, acls: Sequence[Acl]) -> None:
        """Forget them."""
        self.acls = [acl for acl in self.acls if acl not in acls]


def test_acls_have_a_bound_in_bytes() -> None:
    """Past it each gets error 44 with the reason; what is there already costs nothing, and room is given back."""
    store = MemoryAclStore()
    acls = [READ._replace(resource_name=f"t{number}") for number in range(5)]
    administration = AclAdministration(store, Authorizer(most_bytes=3 * acls[0].memory_bytes))
    results = run_at_once(administration.create_in_slices([*acls, acls[0]], AUDIT))
    assert [result and result[0] for result in results] == [None] * 3 + [POLICY_VIOLATION] * 2 + [None]
    assert store.acls == acls[:3]
    assert run_at_once(administration.delete_in_slices([acls[0], acls[0]], AUDIT)) == {}
    assert run_at_once(administration.create_in_slices(acls[4:], AUDIT)) == [None]
    assert store.acls == [*acls[1:3], acls[4]]


def test_many_are_stored_a_piece_at_a_time() -> None:
    """Nobody waits for a request that creates thousands, and each holds when it is answered."""
    acls = [READ._replace(resource_name=f"t{number}") for number in range(1000)]
    administration = AclAdministration(MemoryAclStore(), Authorizer())
    assert len(list(administration.create_in_slices(acls, AUDIT))) == 40
    assert len(administration.authorizer) == 1000
    assert len(list(administration.delete_in_slices(acls, AUDIT))) == 40
    assert not len(administration.authorizer)


def test_settings_say_whether_there_is_one() -> None:
    """Without the class nobody is asked; with it super users may do everything."""
    texts = {"super.users": "User:admin", "allow.everyone.if.no.acl.found": "true"}
    assert AclAdministration.of(ServerConfig.load(texts), MemoryAclStore()) is None
    config = ServerConfig.load({**texts, "authorizer.class.name": STANDARD})
    administration = AclAdministration.of(config, MemoryAclStore(READ))
    assert administration is not None
    authorizer = administration.authorizer
    assert authorizer.authorized("admin", "::1", codes.ALTER, codes.TOPIC, "t")
    assert not authorizer.authorized("bob", "::1", codes.READ, codes.TOPIC, "t")
    assert authorizer.authorized("bob", "::1", codes.READ, codes.TOPIC, "other")
