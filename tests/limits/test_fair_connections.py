"""Tenants and addresses that use all connections shut out no other tenant."""

import contextlib
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.limits.frames import METADATA, metadata
from tests.limits.tenants import TenantsBroker, first_operation, tenants_broker

pytestmark = pytest.mark.alone

FILES = 1200
"""Descriptors of the broker, of which 256 are kept for files."""
BOUNDS = {"descriptors": {}, "max.connections": {"max.connections": "500"}}
MOST = {"descriptors": FILES - 256, "max.connections": 500}
TIMEOUT_S = 30.0


@contextlib.contextmanager
def all_used_by(broker: TenantsBroker, most: int, users: tuple[str, ...]) -> Iterator[None]:
    """Let users log in as often as there are connections, and more."""
    with contextlib.ExitStack() as opened:
        for number in range(most + 20):
            user = users[number % len(users)]
            with contextlib.suppress(ConnectionError):  # all are used: it is closed at once
                opened.enter_context(broker.log_in(user))
        yield


@contextlib.contextmanager
def all_used_from(broker: TenantsBroker, bound: str, addresses: tuple[str, ...]) -> Iterator[None]:
    """Connect from addresses as often as there are connections, and more, without a login.

    Without descriptors one is closed, which is waited for: all others are served by then.
    """
    closed = select.poll()
    with contextlib.ExitStack() as opened:
        for number in range(MOST[bound] + 20):
            client = opened.enter_context(socket.socket())
            client.settimeout(TIMEOUT_S)
            client.bind((addresses[number % len(addresses)], 0))
            client.connect(("127.0.0.1", broker.port))
            closed.register(client, select.POLLIN)
        assert bound != "descriptors" or closed.poll(TIMEOUT_S * 1000)
        yield


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("attackers", [("mallory",), ("mallory", "eve")], ids=len)
def test_another_tenant_connects(tmp_path: Path, bound: str, attackers: tuple[str, ...]) -> None:
    """It logs in and creates a topic; again, and again, while its connections are fewer than those of another."""
    with (
        tenants_broker(tmp_path, (*attackers, "victim"), BOUNDS[bound], most_files=FILES) as broker,
        all_used_by(broker, MOST[bound], attackers),
    ):
        for number in range(10):
            with first_operation(), broker.log_in("victim") as client:
                client.create(f"victim-{number}")
        assert "its principal has the most" in broker.log


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("sources", [("127.0.0.2",), ("127.0.0.2", "127.0.0.3")], ids=len)
def test_another_address_connects_where_others_do_not_log_in(
    tmp_path: Path, bound: str, sources: tuple[str, ...]
) -> None:
    """Connections that have not logged in count for their addresses."""
    with (
        tenants_broker(tmp_path, ("victim",), BOUNDS[bound], most_files=FILES) as broker,
        all_used_from(broker, bound, sources),
    ):
        with contextlib.ExitStack() as opened:
            for _ in range(10):
                with first_operation():
                    client = opened.enter_context(broker.log_in("victim"))
                    client.ask(METADATA, 7, metadata(None))
        assert "its principal has the most" in broker.log
