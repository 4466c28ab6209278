"""The settings of the nodes of a gateway, made from those that were given.

The broker with id N has the port of each listener, of its advertised address and of the metrics listener plus N. If an
advertised host contains `{id}`, all brokers have the same port, and the id is a part of the host.

>>> given = ServerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:19092"})
>>> broker_config(given, 3).listeners[0].address.port
19095
"""

import re
from collections.abc import Collection, Mapping

from tidegate.client.settings import ClientSettings
from tidegate.errors import ConfigError
from tidegate.gateway.addresses import BROKER_ID, MAX_PORT, ServerNames
from tidegate.gateway.processes import METRICS_STEP, ONLY, Process, record_node
from tidegate.quota.managers.extensions import CLUSTER_WIDE
from tidegate.server.listening.listener_config import ListenerConfig
from tidegate.server.listening.sasl_config import ENABLED_MECHANISMS, PLAIN
from tidegate.server.monitoring.entities import ONLY_PROCESS, ProcessPorts
from tidegate.server.node import reachable_host
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.metrics_settings import METRICS_LISTENER
from tidegate.tls.settings import REQUIRED, client_auth

__all__ = [
    "MAX_BROKERS",
    "broker_config",
    "gateway_logs_in",
    "listener_addresses",
    "max_brokers",
    "metrics_ports",
    "parse_broker_ids",
    "record_config",
    "server_names",
    "upstream_notices",
]


MAX_BROKERS = 256
"""Brokers that one process serves: each costs memory, and all share one thread."""
MAX_CONVERTED = 16
"""Brokers that one process serves if it converts its usage record to Parquet: each has a process for that."""
MAX_LISTED = 10_000
MIN_RECEIVE_BUFFER_BYTES = 64 * 1024
"""Bytes of a ClientHello that a socket has to hold before it is read."""
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


def broker_config(given: ServerConfig, broker_id: int, process: Process = ONLY) -> ServerConfig:
    """Return the settings of the node for a broker. Raises `ConfigError` where a port would be none."""
    texts = {**given.given, "node.id": str(broker_id)}
    by_name = {listener.name for listener in given.listeners if _pattern(listener)}
    for name in ("listeners", "advertised.listeners"):
        if given[name]:
            texts[name] = _of_broker(given[name], broker_id, by_name)
    if given[METRICS_LISTENER]:
        own = broker_id + (process.number - 1) * METRICS_STEP
        texts[METRICS_LISTENER] = _of_broker(given[METRICS_LISTENER], own, by_name)
    if process.count > 1:
        # All quotas are shared and recorded as cluster-wide; `ProcessSharing` knows with which processes.
        texts[CLUSTER_WIDE] = "all"
    return ServerConfig.load(texts)


def record_config(config: ServerConfig, process: Process) -> ServerConfig:
    """Return the settings of a node for its usage record: each process has one. Raises `ConfigError`."""
    node_id = record_node(config["node.id"], process)
    return config if process.count == 1 else ServerConfig.load({**config.given, "node.id": str(node_id)})


def metrics_ports(own_port: int, process: Process) -> ProcessPorts:
    """Return the ports at which the processes of a gateway serve the metrics of a broker.

    >>> metrics_ports(10_301, Process(number=2, count=3)).ports
    (9301, 10301, 11301)
    """
    if process.count == 1:
        return ONLY_PROCESS
    first = own_port - (process.number - 1) * METRICS_STEP
    ports = tuple(first + number * METRICS_STEP for number in range(process.count))
    return ProcessPorts(number=process.number, ports=ports)


def max_brokers(given: ServerConfig) -> int:
    """Return how many brokers one process serves at most."""
    converts = given["tidegate.usage.enable"] and given["tidegate.usage.parquet.enable"]
    return MAX_CONVERTED if converts else MAX_BROKERS


def server_names(given: ServerConfig, bootstrap: Collection[str]) -> dict[str, ServerNames]:
    """Return by listener the server names of those that distinguish brokers by name.

    bootstrap: the names that lead to any broker; none: what the listeners have by default. Raises `ConfigError`.
    """
    for name in bootstrap:
        if not _HOST.fullmatch(name):
            raise ConfigError(
                f"--bootstrap-name has {name!r}, expected a host name",
                hint="for example --bootstrap-name kafka.example.com; separate several names by commas",
            )
    found = {}
    for listener in given.listeners:
        pattern = _pattern(listener)
        if pattern:
            _check_pattern(listener, pattern)
            found[listener.name] = ServerNames(pattern, bootstrap)
    if bootstrap and not found:
        raise ConfigError(
            "--bootstrap-name is set, and no listener distinguishes brokers by name",
            hint=f"set advertised.listeners, for example to SSL://broker-{BROKER_ID}.kafka.example.com:9093",
        )
    buffer_bytes = given["socket.receive.buffer.bytes"]
    if found and 0 <= buffer_bytes < MIN_RECEIVE_BUFFER_BYTES:
        raise ConfigError(
            f"socket.receive.buffer.bytes is {buffer_bytes}, expected -1, or at least {MIN_RECEIVE_BUFFER_BYTES} "
            "for listeners that distinguish brokers by name",
            hint="remove the setting, or set it to -1: the system then chooses the size",
        )
    return found


def _pattern(listener: ListenerConfig) -> str:
    """Return the advertised host of a listener that distinguishes brokers by name, else nothing."""
    host = "" if listener.advertised is None else listener.advertised.host
    return host if BROKER_ID in host else ""


def _check_pattern(listener: ListenerConfig, pattern: str) -> None:
    if not listener.is_encrypted:
        raise ConfigError(
            f"advertised.listeners has {BROKER_ID} for listener {listener.name} ({listener.protocol}), expected a "
            "listener with SSL or SASL_SSL: brokers are distinguished by the server name in the TLS handshake",
            hint="without TLS, each broker has its own port: remove the part with {id}",
        )
    if pattern.count(BROKER_ID) != 1 or not _HOST.fullmatch(pattern.replace(BROKER_ID, "0")):
        raise ConfigError(
            f"advertised.listeners has the host {pattern!r} for listener {listener.name}, expected a host name with "
            f"{BROKER_ID} once, such as broker-{BROKER_ID}.kafka.example.com",
            hint=f"{BROKER_ID} stands for the id of a broker; a name has letters, digits, '-', '.' and '_'",
        )


def listener_addresses(given: ServerConfig) -> Mapping[str, tuple[str, int]]:
    """Return by listener the advertised host, and the port that the broker with id 0 would have.

    Raises `ConfigError` for port 0: the ports of the brokers follow from it.
    """
    addresses = {}
    for listener in given.listeners:
        advertised = listener.advertised or listener.address
        if not advertised.port or not (listener.address.port or _pattern(listener)):
            raise ConfigError(
                f"listener {listener.name} has port 0, expected a port, to which the id of each broker is added",
                hint="choose one such as 19092: the broker with id 1 is then at 19093",
            )
        addresses[listener.name] = reachable_host(advertised.host), advertised.port
    return addresses


def parse_broker_ids(text: str) -> frozenset[int]:
    """Return the ids in a list such as `1,3-5`. Raises `ConfigError`."""
    ids: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        if found is None:
            raise ConfigError(
                f"--brokers is {text!r}, expected ids such as 1,3-5",
                hint="remove --brokers to serve all brokers",
            )
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first >= MAX_LISTED:
            raise ConfigError(
                f"--brokers has the range {part.strip()}, expected 1 to {MAX_LISTED} ids in it",
                hint="write the lower id first; a gateway serves only the brokers that the cluster has",
            )
        ids.update(range(first, last + 1))
    return frozenset(ids)


def gateway_logs_in(given: ServerConfig, wanted: bool | None) -> bool:
    """Return whether the gateway logs in at the brokers, for every client; else logins of clients pass through.

    wanted: None: it does where a listener uses SASL, so that logins end here. Raises `ConfigError`.
    """
    with_sasl = [listener for listener in given.listeners if listener.sasl is not None]
    for listener in with_sasl:
        assert listener.sasl is not None
        without_store = [name for name in listener.sasl.mechanisms if name != PLAIN]
        if without_store:
            raise ConfigError(
                f"listener {listener.name} has {', '.join(without_store)} in {ENABLED_MECHANISMS}, expected {PLAIN}: "
                "a gateway keeps no SCRAM users",
                hint="set the protocol of the listener to PLAINTEXT or SSL: logins then pass through to the brokers",
            )
    if with_sasl and wanted is False:
        raise ConfigError(
            f"--login is clients, but the gateway checks logins of listener {with_sasl[0].name} "
            f"({with_sasl[0].protocol})",
            hint="set the protocol of the listener to PLAINTEXT or SSL, or remove --login",
        )
    return bool(with_sasl or wanted)


def upstream_notices(given: ServerConfig, upstream: ClientSettings, *, logs_in: bool) -> list[str]:
    """Return the warnings about `--upstream-config`.

    They are about misspelt settings, and listeners whose clients use the cluster as the gateway, without a login.
    """
    misspelt = [
        f"unknown setting {name!r} in --upstream-config has no effect; did you mean {like!r}?"
        for name, like in upstream.misspelt.items()
    ]
    return misspelt + _login_notices(given, upstream, logs_in=logs_in)


def _login_notices(given: ServerConfig, upstream: ClientSettings, *, logs_in: bool) -> list[str]:
    """Return a warning for each listener whose clients use the cluster as the gateway, without a login of their own."""
    if logs_in and upstream.mechanism:
        name = f"user {upstream.user!r}"
    elif upstream.has_certificate and (logs_in or not upstream.mechanism):
        name = "the user of the gateway's certificate"
    else:
        return []
    return [
        f"clients of listener {listener.name} reach the cluster as {name} without a login of their own; "
        "hint: use the protocol SASL_SSL, or SSL with ssl.client.auth=required"
        for listener in given.listeners
        if listener.sasl is None
        and not (listener.is_encrypted and client_auth(listener.name, given.values, given.given) == REQUIRED)
    ]


def _of_broker(listeners: str, broker_id: int, by_name: Collection[str]) -> str:
    """Return listeners as they are for one broker: with a higher port, or with its id in the host."""

    def shift(port: re.Match[str]) -> str:
        shifted = int(port[1]) + broker_id
        if shifted > MAX_PORT:
            raise ConfigError(
                f"broker {broker_id} has no port: {port[1]} plus its id is {shifted}, expected at most {MAX_PORT}",
                hint="choose a lower port for --listen",
            )
        return f":{shifted}"

    def own(part: str) -> str:
        if part.partition("://")[0].strip().upper() in by_name:
            return part.replace(BROKER_ID, str(broker_id))
        return re.sub(r":(\d+)\s*$", shift, part)

    return ",".join(map(own, listeners.split(",")))
