"""A broker whose clients are tenants: each logs in with SASL/PLAIN and may use names with its own prefix only.

    with tenants_broker(tmp_path, ("mallory", "victim")) as broker:
        with broker.log_in("mallory") as client:
            client.ask(CREATE_TOPICS, 5, create_topics([new_topic("mallory-0", 100)]))
        broker.restart()
        with first_operation(), broker.log_in("victim") as client:
            client.create("victim-0")

A tenant has READ, WRITE, CREATE and so on for topics and groups called `NAME-…`, and no right to the cluster. `admin`
is a super user. Names such as `mallory-1` and `mallory-2` are tenants of their own, unlike the topics `mallory-0`.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.broker import Broker
from tests.e2e.lateness import Lateness
from tests.limits.frames import CREATE_ACLS
from tests.limits.watched import Connection

from tidegate.acl import codes as acl
from tidegate.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE

ADMIN = "admin"
FIRST_OPERATION_S = 1.0
"""A tenant's first operation is answered within this time, whatever others have done."""
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class TenantConnection(Connection):
    """A connection of a user that has logged in."""

    def __init__(self, port: int, user: str, receive_buffer_bytes: int | None = None) -> None:
        super().__init__(port, receive_buffer_bytes)
        self.user = user
        handshake = self.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        assert handshake["error_code"] == 0, handshake
        token = "\0".join(("", user, _password(user))).encode()
        answer = self.ask(SASL_AUTHENTICATE, 1, {"auth_bytes": token})
        assert answer["error_code"] == 0, answer


class TenantsBroker(Broker):
    """A `tidegate serve` process with an authorizer and one user for each tenant.

    most_files: how many descriptors it may have, where that is not up to the system.
    """

    most_files: int | None = None

    def command(self) -> list[str]:
        """Return what starts Tidegate, without its arguments."""
        if self.most_files is None:
            return super().command()
        return ["sh", "-c", f'ulimit -n {self.most_files}; exec "$@"', "sh", *super().command()]

    def log_in(self, user: str) -> TenantConnection:
        """Return a new connection that has logged in."""
        return TenantConnection(self.port, user)

    def restart(self, *, kill: bool = False) -> None:
        """End the process, in order or as a crash does, and start it again on the same data and port."""
        if kill:
            self.kill()
        else:
            assert self.stop() == 0
        self.start()


@contextlib.contextmanager
def tenants_broker(
    directory: Path,
    tenants: Sequence[str],
    overrides: dict[str, str] | None = None,
    *,
    most_files: int | None = None,
) -> Iterator[TenantsBroker]:
    """Start a broker on which each tenant may use names with its own prefix; end it, and look for tracebacks."""
    users = " ".join(f'user_{user}="{_password(user)}"' for user in (ADMIN, *tenants))
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_PLAIN} required {users};",
        "authorizer.class.name": _AUTHORIZER,
        "super.users": f"User:{ADMIN}",
        "group.initial.rebalance.delay.ms": "0",
        **(overrides or {}),
    }
    broker = TenantsBroker(directory, settings)
    broker.most_files = most_files
    try:
        broker.start()
        with broker.log_in(ADMIN) as admin:
            for tenant in tenants:
                grant(admin, tenant, acl.TOPIC, f"{tenant}-", acl.ALL)
                grant(admin, tenant, acl.GROUP, f"{tenant}-", acl.ALL)
        yield broker
    finally:
        broker.close()
    assert "Traceback" not in broker.log, broker.log


def grant(admin: Connection, user: str, resource_type: int, prefix: str, *operations: int) -> None:
    """Allow a user operations on all names with a prefix."""
    creations = [
        {
            "resource_type": resource_type,
            "resource_name": prefix,
            "resource_pattern_type": acl.PREFIXED,
            "principal": f"User:{user}",
            "host": "*",
            "operation": operation,
            "permission_type": acl.ALLOW,
        }
        for operation in operations
    ]
    answer = admin.ask(CREATE_ACLS, 3, {"creations": creations})
    assert [result["error_code"] for result in answer["results"]] == [0] * len(creations), answer


@contextlib.contextmanager
def first_operation(within_s: float = FIRST_OPERATION_S) -> Iterator[None]:
    """Check that what happens inside, a tenant's first operation with its login, takes no longer than `within_s`.

    Time in which the machine stood still does not count.
    """
    with Lateness() as lateness:
        begun_s = time.monotonic()
        yield
        took_s = lateness.elapsed_s(begun_s)
    assert took_s < within_s, f"the tenant's first operation took {took_s:.2f} s"


def error_codes_of(answer: dict[str, Any], field: str) -> list[int]:
    """Return the error code of each element of an answer's field."""
    return [part["error_code"] for part in answer[field]]


def _password(user: str) -> str:
    return f"{user}-secret"
