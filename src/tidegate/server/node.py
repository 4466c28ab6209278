"""One node: listeners, channels, quotas, usage record, and the timers that look after them.

A node gets a table of handlers (`api key -> handler`) and the administration of quotas, to which it subscribes. It
answers ApiVersions, and requests to that administration, itself. Everything runs on one event loop, in one thread.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from itertools import chain, count
from typing import Any, Protocol

from tidegate.acl import Authorizer
from tidegate.clock import Clock
from tidegate.errors import ConfigError
from tidegate.in_slices import run_at_once
from tidegate.quota import (
    EXTENSION_SETTINGS,
    ClusterMetadata,
    Metric,
    QuotaManagers,
    QuotaRecord,
    changed_records_in_slices,
)
from tidegate.quota.connections.connection_quotas import OtherProcesses
from tidegate.quota.connections.limits import parse_per_ip_overrides
from tidegate.scheduling import Scheduler
from tidegate.server.administration.acl_administration import AclAdministration
from tidegate.server.administration.host_names import Addresses, warn_of_unknown
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.administration.static_quotas import static_quotas
from tidegate.server.authentication.authenticator import Authenticator
from tidegate.server.authentication.logins import Logins
from tidegate.server.authentication.scram_credentials import ScramCredentials
from tidegate.server.authentication.tls_login import TlsLogin
from tidegate.server.callback.callback_guard import GuardedCallback
from tidegate.server.callback.node_callback import UNCHANGED, NodeCallback
from tidegate.server.clock_watch import ClockWatch
from tidegate.server.closing import Closing
from tidegate.server.connection.answer_memory import AnswerMemory
from tidegate.server.connection.buffers import FrameBuffers
from tidegate.server.connection.channel import Channel
from tidegate.server.connection.request_memory import RequestMemory
from tidegate.server.connection.tls_session import TlsBuffers
from tidegate.server.connection.tls_transport import TlsTransport
from tidegate.server.connection.transport import Transport
from tidegate.server.connection_shares import ConnectionShares
from tidegate.server.handlers import own_handlers
from tidegate.server.listening.acceptor import Acceptor, connection_quotas, limit_connections
from tidegate.server.listening.network import Listener, Network
from tidegate.server.listening.tls_listeners import TlsListeners
from tidegate.server.metrics.meters import TICK_S
from tidegate.server.metrics.network_metrics import NetworkMetrics
from tidegate.server.metrics.request_metrics import RequestMetrics
from tidegate.server.muting import Throttle
from tidegate.server.periodic_work import PeriodicWork
from tidegate.server.requests.controller_record import ControllerRecord
from tidegate.server.requests.front import Front
from tidegate.server.requests.handler import Connection, HandlerTable, NothingToDo, Turn, Wait
from tidegate.server.requests.recorder import Recorder
from tidegate.server.requests.slices import Slices
from tidegate.server.settings.config import ServerConfig, request_memory_bytes
from tidegate.server.settings.dynamic_settings import DynamicSettings
from tidegate.server.settings.kafka_settings import CALLBACK_CLASS
from tidegate.server.settings.table import CONNECTION_SETTINGS
from tidegate.wire import RequestHeader, decode_any_request_header, decode_request_header

__all__ = ["METRICS_SLICE_NS", "Node", "Relay", "reachable_host"]

_log = logging.getLogger("tidegate.server")

METRICS_SLICE_NS = 1_000_000
"""Longest time to read metrics before the loop's other work gets a turn."""
_LOOK_AT_CLOCK_EVERY_S = 1.0
_STALL_CHECK_S = 5.0
_MEMORY_CHECK_S = 1.0
_REVOKE_CHECK_S = 0.1  # a tenth of how long a tenant's first request may take
_LOGIN_CHECK_S = 1.0
_OTHERS_CHECK_S = 0.1
_IDLE_CHECKS_PER_LIMIT = 4


class Relay(Protocol):
    """Forwards the requests of a node's clients to another broker: for each channel there is a connection to it."""

    def on_open(self, channel: Channel) -> None:
        """Prepare a connection for a new channel."""

    def on_close(self, channel: Channel) -> Iterable[tuple[RequestHeader, int]]:
        """Close the connection of a channel that has closed.

        Return header and size of each Produce that was forwarded ahead of its turn: they are charged, too.
        """

    def gauges(self) -> Iterable[tuple[str, float, str]]:
        """Return name, value and help text of metrics of its own."""


class Node:
    """A node that is bound to its ports; `serve` makes it answer, `close` ends it."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        clock: Clock,
        loop: Scheduler,
        network: Network,
        recorder: Recorder | None,
        controller: "Node | None" = None,
        others: OtherProcesses | None = None,
    ) -> None:
        """Bind the ports. controller: the node that decides mutations (B§5.1), None where it is this one.

        others: the other processes that serve the same broker.
        """
        self.config = config
        self.managers = QuotaManagers(
            window=config.quota_windows.rate,
            controller_window=config.quota_windows.mutation,
            note_tags=None if recorder is None else recorder.tags,
            late_limits=True,
        )
        self.callback = NodeCallback(
            config,
            self.managers,
            clock=clock,
            loop=loop,
            note_exchange=None if recorder is None else recorder.callback,
        )
        self.connections = connection_quotas(config, others)
        self._has_others = others is not None
        self._shares = ConnectionShares(self.connections)
        self._static_quotas = static_quotas(config)
        self.tls = TlsListeners(config, loop)
        for notice in self.tls.notices():
            _log.warning("%s", notice)
        self.tls_buffers = TlsBuffers()
        self.network = network
        self.clock = clock
        self._loop = loop
        self._recorder = recorder
        self._next_connection_id = count(1).__next__ if recorder is None else recorder.next_connection_id
        self._at_controller = None if controller is None else ControllerRecord(controller._recorder)
        self._controller = controller or self
        self._acceptors: dict[str, Acceptor] = {}
        self._listen(network)
        self._slices = Slices(loop)
        self._buffers = FrameBuffers(self._slices.schedule)
        self._memory = RequestMemory(
            request_memory_bytes(config), monotonic_ns=clock.monotonic_ns, later=self._slices.schedule
        )
        self._poller = network.poller
        self._quotas: QuotaAdministration | None = None
        self._is_serving = False  # if True, these attributes exist, which `serve` sets:
        self._front: Front
        self._logins: Logins
        self.closing: Closing
        self._answers: AnswerMemory
        self._network_metrics: NetworkMetrics
        self._sasl = {listener.name: listener.sasl for listener in config.listeners}
        self.handlers: HandlerTable = {}
        self._authorizer: Authorizer | None = None
        self._relay: Relay | None = None
        self._periodic = PeriodicWork(
            self.managers, self.connections, recorder, clock=clock, loop=loop, slices=self._slices
        )

    def _listen(self, network: Network) -> None:
        """Bind every listener, or none. Raises `ConfigError`."""
        try:
            for listener in self.config.listeners:
                self._acceptors[listener.name] = Acceptor(
                    listener.address,
                    self.config,
                    network=network,
                    quotas=self.connections,
                    clock=self.clock,
                    loop=self._loop,
                    on_admitted=self._on_admitted,
                    make_room=self._make_room,
                )
        except ConfigError:
            for acceptor in self._acceptors.values():
                acceptor.close()
            raise

    @property
    def listeners(self) -> dict[str, Listener]:
        """The listeners by name, in the order of the settings."""
        return {name: acceptor.listener for name, acceptor in self._acceptors.items()}

    @property
    def advertised(self) -> dict[str, tuple[str, int]]:
        """The advertised host and port of each listener."""
        addresses = {}
        for listener in self.config.listeners:
            told = listener.advertised or listener.address
            port = told.port or self._acceptors[listener.name].listener.port
            host = told.host if listener.advertised and told.host else reachable_host(told.host)
            addresses[listener.name] = host, port
        return addresses

    @property
    def bound(self) -> dict[str, tuple[str, int]]:
        """The host and port that each listener is bound to. The host is that in the settings, maybe empty."""
        return {
            listener.name: (listener.address.host, self._acceptors[listener.name].listener.port)
            for listener in self.config.listeners
        }

    def serve(
        self,
        handlers: HandlerTable,
        quotas: QuotaAdministration,
        turn: Turn | None = None,
        cluster: Callable[[], ClusterMetadata] | None = None,
        settings: DynamicSettings | None = None,
        acls: AclAdministration | None = None,
        credentials: ScramCredentials | None = None,
        relay: Relay | None = None,
    ) -> None:
        """Apply settings and quotas, and begin to accept connections. Raises `ConfigError`.

        turn: the work that handlers do together, if any. cluster: the metadata that a quota callback gets.
        settings: the settings that change while the node runs. acls: the permissions of clients; None: every client
        may do everything. credentials: the credentials of SCRAM users, if they are kept. relay: forwards requests to
        another broker; `handlers` are then those of all APIs, and also of unknown ones.
        """
        self._load_settings(settings)
        if self._recorder is not None:
            self._recorder.start(self.clock.now_ms(), self.config.window_records())
        self.callback.note_start()
        self._quotas = quotas
        for record in chain(self.config.extension_records(), self._static_quotas.values()):
            self.on_quota(record)
        quotas.subscribe(self)
        self.callback.cluster = cluster
        self.callback.update_leaders()
        self._limit_hosts(quotas, run_at_once(limit_connections(self.connections, self.config)))
        self._authorizer = None if acls is None else acls.authorizer
        with_sasl = frozenset(name for name, sasl in self._sasl.items() if sasl is not None)
        self._relay = relay
        if relay is None:
            own = own_handlers(handlers, quotas, acls, credentials, with_sasl, lambda: self.config)
            self.handlers = {**handlers, **own}
        else:
            self.handlers = handlers
        self._front = Front(
            managers=self.managers,
            mutations=self._controller.managers.controller_mutation,
            recorder=self._recorder,
            at_controller=self._at_controller,
            requests=RequestMetrics(self.handlers, self.listeners, self.clock.monotonic_ns),
            clock=self.clock,
            loop=self._loop,
            slices=self._slices,
            poller=self._poller,
            on_closed=self._on_closed,
            turn=turn or NothingToDo(),
            work_bytes=request_memory_bytes(self.config),
            decode_header=decode_request_header if relay is None else decode_any_request_header,
        )
        self._logins = Logins(
            self._front,
            self.config,
            credentials,
            clock=self.clock,
            loop=self._loop,
            poller=self._poller,
            on_user=self._shares.log_in,
        )
        self.closing = Closing(
            self._front,
            self._logins,
            memory=self._memory,
            quotas=self.connections,
            settings=lambda: self.config,
            slices=self._slices,
            monotonic_ns=self.clock.monotonic_ns,
        )
        self._answers = AnswerMemory(
            request_memory_bytes(self.config), later=self._slices.schedule, on_excess=self.closing.unread
        )
        self._is_serving = True
        self._network_metrics = NetworkMetrics(self._front, self._memory, clock=self.clock)
        every = self._periodic.every
        every("metrics", TICK_S, self._tick_metrics)
        self._periodic.start(self.handlers if relay is None else {})
        on_step = None if self._recorder is None else self._recorder.clock
        every("clock", _LOOK_AT_CLOCK_EVERY_S, ClockWatch(self.clock, on_step).look)
        every("stalled", _STALL_CHECK_S, self.closing.stalled)
        every("memory", _MEMORY_CHECK_S, self.closing.slow)
        self._memory.on_revoke = self.closing.revoke
        every("revoke", _REVOKE_CHECK_S, self._memory.revoke_some)
        every("logins", _LOGIN_CHECK_S, self.closing.late_logins)
        if self._has_others:
            every("others", _OTHERS_CHECK_S, self._follow_others)
        idle_ms = self.config["connections.max.idle.ms"]
        if idle_ms > 0:
            every("idle", idle_ms / 1000 / _IDLE_CHECKS_PER_LIMIT, self.closing.idle)
        for acceptor in self._acceptors.values():
            acceptor.listener.start()

    @property
    def channels(self) -> list[Channel]:
        """Return the connections that are open now."""
        return list(self._front.channels)

    @property
    def has_work(self) -> bool:
        """Return whether there is unfinished work in slices."""
        return len(self._slices) > 0

    def refuse_connections(self) -> None:
        """Refuse new connections until `accept_connections`, because a gateway cannot reach its broker."""
        for acceptor in self._acceptors.values():
            acceptor.listener.refuse()

    def accept_connections(self) -> None:
        """Accept new connections again."""
        for acceptor in self._acceptors.values():
            acceptor.listener.stop_refusing()

    def close(self) -> None:
        """Stop accepting, drop all connections, and close the usage record."""
        self._periodic.close()
        self._slices.close()
        if self._quotas is not None:
            self._quotas.unsubscribe(self)
            self._quotas = None
        for acceptor in self._acceptors.values():
            acceptor.close()
        if self._is_serving:
            for channel in list(self._front.channels):
                channel.close()
            self._front.muting.close()
            self._front.close()
            self._logins.close()
        self._poller.close()
        self.callback.close()
        if self._recorder is not None:
            self._recorder.close()

    # --- quotas: a `QuotaSubscriber` --------------------------------------------------------------------------------

    def on_quota(self, record: QuotaRecord) -> None:
        """Apply one definition and record it; if it is removed, apply the value from the settings, if any."""
        if record.value is None:
            record = self._static_quotas.get((record.entity, record.key), record)
        self.managers.apply(record)
        if self._recorder is not None:
            self._recorder.quota(record, self.clock.now_ms())

    def on_ip_rate(self, address: str | None, rate: float | None) -> None:
        """Limit the rate of new connections."""
        self.connections.set_ip_rate(address, rate)

    def _limit_hosts(self, quotas: QuotaAdministration, hosts: list[str]) -> None:
        """Apply the limits of hosts in `max.connections.per.ip.overrides` when their names are resolved."""

        def on_host(host: str, addresses: Addresses) -> None:
            warn_of_unknown(host, addresses)
            count = parse_per_ip_overrides(self.config["max.connections.per.ip.overrides"]).get(host)
            if count is not None:  # the overrides may have changed in the meantime
                for address in addresses:
                    self.connections.set_ip_override(address, count)

        quotas.host_names.look_up_later(hosts, on_host)

    def _load_settings(self, settings: DynamicSettings | None) -> None:
        """Use the settings that were changed at run time, but not a callback that can no longer be loaded."""
        given = self.config
        if settings is not None:
            settings.attach(given["node.id"], self)
            self.config = settings.in_force(given["node.id"])
            self.tls.follow(self.config)
        try:
            self.callback.load(self.config)
        except ConfigError as error:
            if self.config[CALLBACK_CLASS] == given[CALLBACK_CLASS]:
                raise
            _log.error("%s; the callback of the configuration stays in force", error)
            self.callback.load(given)

    # --- settings: a `SettingSubscriber` ----------------------------------------------------------------------------

    def prepare_in_slices(self, config: ServerConfig) -> Generator[Wait | None, None, Any]:
        """Load the quota callback and the stores of other settings. Raises `ConfigError`, changing nothing."""
        tls = yield from self.tls.prepare_in_slices(config)
        return (yield from self.callback.prepare_in_slices(config)), tls

    def discard(self, prepared: Any) -> None:
        """Close a quota callback that was loaded and is not used."""
        callback, _ = prepared
        if isinstance(callback, GuardedCallback):
            callback.close()

    def activate_in_slices(self, config: ServerConfig, prepared: Any) -> Generator[Wait | None, None, None]:
        """Apply changed settings."""
        assert self._quotas is not None
        callback, tls = prepared
        self.tls.activate(tls)
        before, self.config = self.config, config
        if any(config[name] != before[name] for name in EXTENSION_SETTINGS):
            given, wanted = before.extension_records(), config.extension_records()
            for record in (yield from changed_records_in_slices(given, wanted)):
                self.on_quota(record)
                yield None
        limits_changed = any(config[name] != before[name] for name in CONNECTION_SETTINGS)
        if limits_changed or config.listeners != before.listeners:
            yield None
            hosts = yield from limit_connections(self.connections, config)
            yield None
            self._limit_hosts(self._quotas, hosts)
            yield None
            self.closing.excess()
            self._on_slots()
        if callback is not UNCHANGED:
            yield from self._quotas.changes.acquire()
            try:
                records = chain(self._static_quotas.values(), self._quotas.definitions.records())
                yield from self.callback.exchange_in_slices(callback, config, records)
            finally:
                self._quotas.changes.release()

    # --- metrics --------------------------------------------------------------------------------------------------

    def metrics(self, now_ms: int, *, with_clients: bool = True) -> Iterator[Metric]:
        """Yield every metric for the engine time `now_ms`, each read when it is yielded, without changing any state.

        Between two metrics, requests may be served, and clients may connect or leave. With 50,000 clients, all metrics
        take about a second; `metrics_in_slices` does not block the loop. with_clients: include those of clients.
        """
        return chain(
            self.managers.metrics(now_ms) if with_clients else self.managers.shared_metrics(now_ms),
            self._front.muting.metrics(),
            self.connections.metrics(now_ms),
            self.callback.metrics(),
            self._network_metrics.metrics(now_ms),
            self._front.requests.metrics(),
        )

    def gauges(self) -> Iterable[tuple[str, float, str]]:
        """Return name, value and help text of the metrics that go beyond Kafka's."""
        return () if self._relay is None else self._relay.gauges()

    async def metrics_in_slices(
        self, now_ms: int, *, with_clients: bool = True
    ) -> AsyncIterator[list[Metric]]:
        """Yield the metrics in lists that take about a millisecond each, with a turn of the loop after each."""
        part, until_ns = [], self.clock.monotonic_ns() + METRICS_SLICE_NS
        for metric in self.metrics(now_ms, with_clients=with_clients):
            part.append(metric)
            if self.clock.monotonic_ns() >= until_ns:
                yield part
                await asyncio.sleep(0)
                part, until_ns = [], self.clock.monotonic_ns() + METRICS_SLICE_NS
        yield part

    def throttles(self) -> list[tuple[Channel, Throttle]]:
        """Return the channels that are throttled now, each with its throttle."""
        return self._front.muting.throttles()

    def _tick_metrics(self) -> None:
        self._front.requests.tick()
        self._network_metrics.tick()

    # --- connections ----------------------------------------------------------------------------------------------

    def _on_admitted(self, listener: str, transport: Transport, host: str) -> None:
        local_host, local_port = transport.local_address
        sasl, tls, handshake = self._sasl[listener], self.tls.of(listener), None
        if tls is not None:
            handshake = TlsLogin(self._logins, tls, names_user=sasl is None)
            transport = TlsTransport(
                transport, tls.context, self.tls_buffers, poller=self._poller, owner=handshake
            )
        connection = Connection(
            id=self._next_connection_id(),
            listener=listener,
            client_host=host,
            local_host=local_host,
            local_port=local_port,
            authorizer=self._authorizer,
        )
        channel = Channel(
            transport,
            connection,
            handlers=self.handlers,
            owner=self._front if sasl is None else Authenticator(self._logins, sasl),
            buffers=self._buffers,
            memory=self._memory,
            answers=self._answers,
            monotonic_ns=self.clock.monotonic_ns,
            max_frame_bytes=self.config["socket.request.max.bytes"],
        )
        if self._relay is not None:
            self._relay.on_open(channel)
        self._front.channels[channel] = None
        self._shares.count_connection(channel)
        self._front.requests.listeners[listener].created += 1
        if handshake is not None:
            handshake.begin(channel)
        elif sasl is not None:
            self._logins.start_login(channel)
        self.closing.excess()

    def log_in(self, channel: Channel, user: str) -> None:
        """Set the user of a connection whose login another broker has accepted."""
        channel.connection.set_user(user)
        self._shares.log_in(channel)

    def _on_closed(self, channel: Channel) -> None:
        if self._relay is not None:
            self._front.charge_unserved(channel, self._relay.on_close(channel))
        self._logins.end_login(channel)
        self._shares.remove(channel)
        self._front.requests.listeners[channel.connection.listener].closed += 1
        self.connections.release(channel.connection.listener, channel.connection.client_host)
        self._on_slots()

    def _make_room(self, listener: str | None, host: str) -> bool:
        """Close a connection of a principal with more than the client at `host` has; return whether there was one."""
        if self.config["tidegate.kafka.exact"]:
            return False
        channel = self._shares.least_used(host, listener)
        if channel is not None:
            self.closing.displaced(channel)
        return channel is not None

    def _on_slots(self) -> None:
        """Notify the acceptors that there may be a slot for a waiting connection."""
        for acceptor in self._acceptors.values():
            acceptor.slot_freed()

    def _follow_others(self) -> None:
        """Use slots that other processes have freed, and close connections above the limit over all processes."""
        self.closing.excess()
        self._on_slots()


def reachable_host(host: str) -> str:
    """Return a host that clients can connect to, in place of a wildcard address."""
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host
