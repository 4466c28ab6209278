"""A broker for tests: `with broker(...) as kafka`."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tidegate.errors import ConfigError
from tidegate.testing.administration import (
    CLIENT_ID,
    Quotas,
    alter_quotas,
    describe_quotas,
    read_quotas,
    set_scram_passwords,
)
from tidegate.testing.process import BrokerError, BrokerProcess
from tidegate.testing.served import ServedRequest, served_requests

__all__ = ["Broker", "broker"]

WAIT_TIMEOUT_S = 10.0
MAX_USERS = 1000

_WAIT_POLL_S = 0.02
_EXEMPT = "tidegate.quota.exempt"
_MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_FOR_TESTS = {
    "group.initial.rebalance.delay.ms": "0",  # by default a new group waits 3 s for more members
    "tidegate.usage.parquet.enable": "false",  # the spool is read, and no second process is started
    "tidegate.usage.segment.ms": "86400000",  # a segment for each 16 MB
}
_OWN_SETTINGS = (
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "log.dirs",
    "log.dir",
    "sasl.enabled.mechanisms",
)
_OWN_PREFIX = "tidegate.usage."


class Broker:
    """A running broker, made by `broker(...)`."""

    def __init__(self, process: BrokerProcess, *, listeners: int) -> None:
        self._process = process
        self._kit_port = process.ports[listeners - 1]
        self._client_ports = process.ports[::listeners]

    @property
    def bootstrap(self) -> str:
        """Return `host:port` of every node, comma-separated, for `bootstrap.servers`."""
        return ",".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        """Return `host:port` of each node."""
        return [f"127.0.0.1:{port}" for port in self._client_ports]

    @property
    def log(self) -> str:
        """Return what the broker has logged so far, its last 16 MiB; also after it has ended."""
        return self._process.log

    @property
    def pid(self) -> int:
        """Return the id of the broker's process."""
        return self._process.pid

    def set_quota(self, entity: Mapping[str, str | None], /, **rates: float | str | None) -> None:
        """Set quotas of an entity from the next request on; None removes one. Other quotas stay.

        entity: names by `user`, `client-id` or `ip`; None is the default entity. rates: values by Kafka's key, such as
        `producer_byte_rate="1MiB"`. Raises `ConfigError` for values that cannot be meant, else `BrokerError`.
        """
        if not rates:
            raise ConfigError("no rate is given", hint="for example: producer_byte_rate='1MiB'")
        given = {key: 1 if value is None else value for key, value in rates.items()}  # its key is checked
        (entry,) = read_quotas([{**entity, **given}]).entries
        values = {key: None if rates[key] is None else value for key, value in entry.values.items()}
        alter_quotas(self._kit_port, [(entry.entity, values)])

    def quotas(self) -> list[dict[str, Any]]:
        """Return all quotas in force, in the form that `broker(quotas=...)` reads; rates are floats."""
        return [{**dict(entity), **values} for entity, values in describe_quotas(self._kit_port)]

    def requests(self, *, client_id: str | None = None, user: str | None = None) -> list[ServedRequest]:
        """Return all requests that were decided so far, of one client id or user if given; node by node, in order.

        A request is in the list before its client has the answer. Requests of `set_quota` and `quotas` are left out.
        """
        return [
            request
            for request in served_requests(self._process.usage_directory)
            if request.client_id != CLIENT_ID
            and client_id in (None, request.client_id)
            and user in (None, request.user)
        ]

    def throttles(self, *, client_id: str | None = None, user: str | None = None) -> list[ServedRequest]:
        """Return the throttled requests of `requests`."""
        return [
            request
            for request in self.requests(client_id=client_id, user=user)
            if request.throttle_time_ms > 0
        ]

    def early_requests(self, *, client_id: str | None = None, user: str | None = None) -> list[ServedRequest]:
        """Return the requests that were sent before the client's throttle time was over."""
        return [
            request
            for request in self.requests(client_id=client_id, user=user)
            if request.early_ms is not None
        ]

    def wait_throttle(
        self, *, client_id: str | None = None, user: str | None = None, timeout_s: float = WAIT_TIMEOUT_S
    ) -> ServedRequest:
        """Return the first throttled request of a client, waiting for it. Raises `BrokerError` after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.throttles(client_id=client_id, user=user)
            if found:
                return found[0]
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"no request of client_id={client_id!r}, user={user!r} was throttled in {timeout_s} s",
                    hint="broker.requests() lists all requests, broker.quotas() the quotas in force",
                )
            time.sleep(_WAIT_POLL_S)


@contextmanager
def broker(
    *,
    quotas: Quotas = (),
    nodes: int = 1,
    sasl: Mapping[str, str] | None = None,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Broker]:
    """Start a broker on free ports of 127.0.0.1; stop it and remove its data at the end of the block.

    quotas: a path to a `quotas.yaml`, or its entries as dicts: `{"client-id": "loader", "producer_byte_rate": "1MiB"}`.
    nodes: number of brokers, 1 to 16, in one process. sasl: passwords by user. Clients then log in with SASL_PLAINTEXT,
    and PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. settings: of the broker, by Kafka's names.
    Raises `ConfigError` for quotas, users and settings that cannot be used, `BrokerError` if the broker does not start.
    """
    given = read_quotas(quotas)
    texts = _settings({**given.windows, **given.settings, **(settings or {})}, sasl)
    process = BrokerProcess(texts, nodes=nodes)
    try:
        running = Broker(process, listeners=texts["listeners"].count("://"))
        kit_port = running._kit_port
        alter_quotas(kit_port, [(entry.entity, entry.values) for entry in given.entries])
        if sasl:
            set_scram_passwords(kit_port, sasl)
        yield running
    finally:
        process.stop()


def _settings(given: Mapping[str, object], sasl: Mapping[str, str] | None) -> dict[str, str]:
    """Return all settings of the broker. Raises `ConfigError` for one that the kit sets itself."""
    for name in given:
        if name in _OWN_SETTINGS or name.startswith(_OWN_PREFIX):
            raise ConfigError(
                f"setting {name!r} is set by the test kit itself",
                hint="run 'tidegate serve' for listeners, TLS or a usage record of your own",
            )
    texts = {name: _text(value) for name, value in given.items()}
    others = texts.pop(_EXEMPT, "none")
    # The requests of the kit itself count against no quota.
    exempt = others if others == "all" else f"client-id={CLIENT_ID}"
    exempt = exempt if others in ("all", "none") else f"{others};{exempt}"
    return {**_FOR_TESTS, **texts, _EXEMPT: exempt, **_listeners(sasl)}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listeners(sasl: Mapping[str, str] | None) -> dict[str, str]:
    """Return the settings of the listeners: with logins, the kit has a listener of its own, the last one."""
    if sasl is None:
        return {"listeners": "PLAINTEXT://127.0.0.1:0"}
    if not 1 <= len(sasl) <= MAX_USERS:
        raise ConfigError(f"sasl has {len(sasl)} users, expected 1 to {MAX_USERS}")
    users = " ".join(f"{_quoted(f'user_{user}')}={_quoted(password)}" for user, password in sasl.items())
    return {
        "listeners": "CLIENTS://127.0.0.1:0,TESTKIT://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,TESTKIT:PLAINTEXT",
        "sasl.enabled.mechanisms": _MECHANISMS,
        "listener.name.clients.plain.sasl.jaas.config": f"{_PLAIN_MODULE} required {users};",
    }


def _quoted(text: str) -> str:
    """Return a text as a JAAS setting has it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
