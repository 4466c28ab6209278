"""Changes that the kit makes on its own broker with `tidegate.client`: quotas and SCRAM users.

Each call runs on a thread with an event loop of its own, so that tests can also make it while their own loop runs.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.testing.process import BrokerError

if TYPE_CHECKING:
    from tidegate.client import Admin

__all__ = ["CLIENT_ID", "alter_quotas", "describe_quotas", "set_scram_passwords"]

CLIENT_ID = "tidegate-testing"
"""The client id of these requests."""

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of Kafka's entity type and a name; None is the default entity."""

_Result = TypeVar("_Result")
_TIMEOUT_MS = 30_000
_HINT = "with an authorizer, add User:ANONYMOUS to super.users: the kit itself does not log in"


def alter_quotas(port: int, changes: Iterable[tuple[Entity, Mapping[str, float | None]]]) -> None:
    """Set quotas by Kafka's key, or remove them (None). Raises `BrokerError` with the broker's reason."""
    from tidegate.quota.admin.definitions import Alteration

    alterations = [Alteration(entity=entity, ops=tuple(values.items())) for entity, values in changes]
    if alterations:
        _check(_administer(port, lambda admin: admin.alter_client_quotas(alterations)), "quota")


def describe_quotas(port: int) -> list[tuple[Entity, dict[str, float]]]:
    """Return all quotas: entity, and values by Kafka's key. Raises `BrokerError`."""
    return _administer(port, lambda admin: admin.describe_client_quotas())


def set_scram_passwords(port: int, passwords: Mapping[str, str]) -> None:
    """Set passwords of users, for all SCRAM mechanisms. Raises `BrokerError`."""
    from tidegate.client import ScramChange
    from tidegate.scram import SCRAM_MECHANISMS

    async def work(admin: "Admin") -> None:
        for mechanism in SCRAM_MECHANISMS:  # a request changes a user once
            changes = [
                ScramChange(user=user, mechanism=mechanism, password=password)
                for user, password in passwords.items()
            ]
            _check(await admin.alter_scram_users(changes), "user")

    _administer(port, work)


def _check(results: Mapping[Any, Exception | None], kind: str) -> None:
    """Raise `BrokerError` for the first change that the broker refused."""
    for name, error in results.items():
        if error is not None:
            raise BrokerError(f"the broker refused {kind} {name!r}: {error}", hint=_HINT)


def _administer(port: int, work: "Callable[[Admin], Awaitable[_Result]]") -> _Result:
    """Return what `work` returns for an `Admin` of the broker. Raises `BrokerError`."""
    import asyncio

    from tidegate.client import Admin, ClientError, client_settings
    from tidegate.client import BrokerError as RefusedError

    settings = client_settings(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "client.id": CLIENT_ID,
            "default.api.timeout.ms": str(_TIMEOUT_MS),
        }
    )

    async def run() -> _Result:
        async with Admin(settings) as admin:
            return await work(admin)

    try:
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(lambda: asyncio.run(run())).result()
    except ClientError as error:
        hint = _HINT if isinstance(error, RefusedError) else error.hint
        raise BrokerError(f"the broker did not do what the kit asked: {error}", hint=hint) from error
