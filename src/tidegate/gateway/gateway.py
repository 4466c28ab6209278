"""The gateway: a node of the server for each broker of the cluster, and the objects that the nodes share.

The broker with id N has the port of each listener plus N, or a part of one port (`shared_port`). Like a broker, each
node has its own quotas, usage record and metrics. All nodes, and all gateway processes of the cluster, share the quota
definitions (`quota_topic`), unless these come from a file. A broker that joins gets a node while the gateway runs. The
node of a broker that leaves stays, and refuses connections until the broker returns.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import uuid4

from tidegate.client.settings import ClientSettings
from tidegate.clock import Clock
from tidegate.errors import ConfigError
from tidegate.gateway.addresses import Addresses, ServerNames
from tidegate.gateway.brokers import REFRESH_S, Brokers
from tidegate.gateway.node_relay import NodeRelay, own_handlers
from tidegate.gateway.processes import ONLY, Process, ProcessSharing, check_processes
from tidegate.gateway.reachability import Reachability
from tidegate.gateway.relay import relay_handlers
from tidegate.gateway.responses import Rewriter
from tidegate.gateway.settings import (
    MAX_BROKERS,
    broker_config,
    listener_addresses,
    max_brokers,
    metrics_ports,
    record_config,
)
from tidegate.gateway.shared_mutations import SharedMutations
from tidegate.gateway.shared_port import BrokerNetwork, SharedPort
from tidegate.gateway.sharing import Sharing
from tidegate.gateway.topic_names import TopicNames
from tidegate.gateway.upstream_login import Credentials, UpstreamSecurity
from tidegate.quota import QuotaRecord
from tidegate.quota.managers.extensions import CLUSTER_WIDE, MUTATIONS_SHARED
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.listening.network import SocketNetwork
from tidegate.server.monitoring.metrics_listener import MetricsListener
from tidegate.server.node import Node
from tidegate.server.requests.handler import Wait
from tidegate.server.requests.recorder import Recorder
from tidegate.server.settings.config import ServerConfig

__all__ = ["Gateway"]

_log = logging.getLogger("tidegate.gateway")

_DNS_NAME = "DNSName:"
_LISTED_NAMES = 3
_PARQUET = "tidegate.usage.parquet.enable"


class Gateway:
    """The gateway process. `start` it; `run` follows the cluster until it is cancelled.

    config: the settings of the broker with id 0; those of the others follow from them. only: the ids of the brokers to
    serve; None: all of them. names: the server names of the listeners with one port for all brokers. logs_in: the
    gateway logs in to the brokers with its own credentials for every client; else logins of clients pass through.
    open_recorder: returns the usage record of a node. process: the place of this process among those of the gateway.
    """

    def __init__(
        self,
        config: ServerConfig,
        upstream: ClientSettings,
        quotas: QuotaAdministration,
        *,
        only: frozenset[int] | None,
        names: Mapping[str, ServerNames],
        logs_in: bool,
        clock: Clock,
        open_recorder: Callable[[ServerConfig], Recorder | None],
        process: Process = ONLY,
    ) -> None:
        self.metrics: dict[int, MetricsListener] = {}
        self._reachability: list[Reachability] = []
        self.nodes: dict[int, Node] = {}
        self.brokers = Brokers(upstream)
        self.config = config
        self._quotas = quotas
        self._only = only
        self._names = names
        self._ports: dict[str, SharedPort] = {}
        self._upstream, self._logs_in = upstream, logs_in
        self._credentials: Credentials | None = None
        self._clock = clock
        self._open_recorder = open_recorder
        self._rewriter = Rewriter(Addresses(listener_addresses(config)))
        self._topic_names = TopicNames(self.brokers.topic_names)
        self._failed: set[int] = set()
        self._most = max_brokers(config)
        window = config.quota_windows.rate
        window_ms = window.samples * window.window_ms
        name = uuid4().hex
        self.sharing = Sharing(name, window_ms=window_ms)
        self.mutations = SharedMutations(name, gateway=process.gateway, on_shared=self._record_shared)
        self._process = process
        self._is_started = False
        self.processes: ProcessSharing | None = None
        if process.count > 1:
            self.processes = ProcessSharing(process, self.sharing, window_ms=window_ms, now_ms=clock.now_ms)
            self.processes.set_cluster_wide(config)

    def shares_quotas(self) -> bool:
        """Return whether the gateways share any quota: a cluster-wide one, or one of mutations.

        Before `start`, mutation quotas are ignored: without the topic, each gateway charges only its own mutations.
        """
        controller = next(iter(self.nodes.values()), None)
        if controller is not None and controller.managers.controller_mutation.enabled:
            return True
        return any(record.key == CLUSTER_WIDE for record in self.config.extension_records())

    def _record_shared(self) -> bool:
        """Record that other gateways charge mutations, too. Return False if there is no node yet to record it."""
        controller = next(iter(self.nodes.values()), None)
        if controller is not None:
            controller.on_quota(QuotaRecord(entity=(), key=MUTATIONS_SHARED, value=1.0))
        return controller is not None

    async def start(self) -> None:
        """Ask the cluster for its brokers, and serve them. Raises `TidegateError`."""
        if self._logs_in and self._upstream.mechanism:
            self._credentials = Credentials(self._upstream, asyncio.get_running_loop())
        await self.brokers.refresh()
        served = self._wanted()
        if not served:
            raise ConfigError(
                f"none of the brokers to serve is in the cluster, which has {sorted(self.brokers.by_id)}",
                hint="correct --brokers",
            )
        if len(served) > self._most:
            raise ConfigError(
                f"the cluster has {len(served)} brokers, one process serves at most {self._most}",
                hint="start several processes, each with its own --brokers, for example --brokers 1-16"
                + (f"; up to {MAX_BROKERS} with {_PARQUET}=false" if self._most < MAX_BROKERS else ""),
            )
        self._bind_shared_ports()
        for broker_id in served:
            self._serve(broker_id)
        for name in self._names:
            self._check_certificate(name)
        self._is_started = True

    async def run(self) -> None:
        """Follow the cluster: brokers that join, move and leave, and names of topics. Never ends."""
        await asyncio.gather(self._follow_brokers(), self._topic_names.follow())

    async def _follow_brokers(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            if not await self.brokers.keep_fresh():
                continue
            for broker_id in self._wanted():
                if broker_id in self.nodes or broker_id in self._failed:
                    continue
                try:
                    if len(self.nodes) >= self._most:
                        raise ConfigError(f"one process serves at most {self._most} brokers")
                    self._serve(broker_id)
                except ConfigError as error:
                    self._failed.add(broker_id)
                    _log.error("cannot serve broker %d, which joined the cluster: %s", broker_id, error)
                except OSError as error:
                    _log.error(
                        "cannot serve broker %d, which joined the cluster: %s; next try in %.0f s",
                        *(broker_id, error.strerror, REFRESH_S),
                        extra={"repeats": f"join {broker_id}"},
                    )
                else:
                    _log.warning("serving broker %d, which joined the cluster", broker_id)

    def follow_settings_in_slices(self, config: ServerConfig) -> Generator[Wait | None, None, None]:
        """Apply changed settings to all nodes, or to none. Raises `ConfigError`, changing nothing.

        config: as in the constructor; what cannot change while a node runs is the same as before.
        """
        prepared: dict[int, tuple[ServerConfig, Any]] = {}
        if self._process.count > 1:
            check_processes(config)
        try:
            while waiting := self.nodes.keys() - prepared.keys():  # a broker may join meanwhile
                for broker_id in sorted(waiting):
                    own = broker_config(config, broker_id, self._process)
                    prepared[broker_id] = own, (yield from self.nodes[broker_id].prepare_in_slices(own))
        except ConfigError:
            for broker_id, (_, ready) in prepared.items():
                self.nodes[broker_id].discard(ready)
            raise
        self.config = config
        for broker_id, (own, ready) in prepared.items():
            yield from self.nodes[broker_id].activate_in_slices(own, ready)
        if self.processes is not None:
            self.processes.set_cluster_wide(config)

    async def close(self) -> None:
        """Close all nodes and connections."""
        for listener in self.metrics.values():
            listener.close()
        for each in self._reachability:
            each.close()
        for node in reversed(self.nodes.values()):
            node.close()
        self.nodes.clear()
        for port in self._ports.values():
            port.close()
        if self.processes is not None:
            self.processes.close()
        await self.brokers.close()

    def _wanted(self) -> list[int]:
        return [broker for broker in sorted(self.brokers.by_id) if self._only is None or broker in self._only]

    def _bind_shared_ports(self) -> None:
        """Bind the ports of the listeners that distinguish brokers by name. Raises `ConfigError`."""
        loop = asyncio.get_running_loop()
        for listener in self.config.listeners:
            names = self._names.get(listener.name)
            if names is not None:
                spread = self._process.spread(is_started=False)
                self._ports[listener.name] = SharedPort(
                    listener.address, names, self.config, loop=loop, spread=spread
                )

    def _check_certificate(self, listener: str) -> None:
        """Log a warning about server names of a listener that are not in its certificate."""
        tls = next(iter(self.nodes.values())).tls.of(listener)
        assert tls is not None, "brokers are distinguished by name with TLS only"
        hosts = [host.removeprefix(_DNS_NAME) for host in tls.hosts if host.startswith(_DNS_NAME)]
        missing = self._names[listener].not_in(hosts, self.nodes)
        if missing:
            _log.warning(
                "the certificate of listener %s has the DNS names %s, and not %s%s; "
                "clients that compare names refuse it",
                listener,
                ", ".join(sorted(hosts)) or "(none)",
                ", ".join(missing[:_LISTED_NAMES]),
                f" and {len(missing) - _LISTED_NAMES} more" if len(missing) > _LISTED_NAMES else "",
            )

    def _serve(self, broker_id: int) -> None:
        """Serve a broker. Raises `ConfigError` if its ports cannot be bound, `OSError` if descriptors run out."""
        loop = asyncio.get_running_loop()
        config = broker_config(self.config, broker_id, self._process)
        spread = self._process.spread(is_started=self._is_started)
        own_network = SocketNetwork(loop, self._clock.monotonic_ns, spread)
        network = BrokerNetwork(own_network, broker_id, self._ports)
        with ExitStack() as undo:
            recorder = self._open_recorder(record_config(config, self._process))
            if recorder is not None:
                undo.callback(recorder.close)
            node = Node(
                config,
                clock=self._clock,
                loop=loop,
                network=network,
                recorder=recorder,
                controller=next(iter(self.nodes.values()), None),
                others=self._process.others_of(broker_id, self._clock.now_ms),
            )
            undo.callback(node.close)
            security = UpstreamSecurity(
                tls=self._upstream.tls, buffers=node.tls_buffers, credentials=self._credentials
            )
            relay = NodeRelay(
                self.brokers.by_id[broker_id],
                network,
                security=security,
                gauges=partial(self._gauges, broker_id),
                clock=self._clock,
                loop=loop,
            )
            own = own_handlers(node, self._quotas, self.brokers, logs_in=self._logs_in)
            handlers = relay_handlers(self._rewriter, self._topic_names, own)
            metrics = None
            if config.metrics is not None:
                ports = metrics_ports(config.metrics.port, self._process)
                metrics = MetricsListener.start(node, config.metrics, ports)
            if metrics is not None:
                undo.callback(metrics.close)
            node.serve(handlers, self._quotas, turn=relay.turn_sends, relay=relay)
            self.mutations.add_node(node.managers)
            if self.processes is None:
                self.sharing.add_node(node.managers)
            else:
                self.processes.add_node(broker_id, node.managers)
            undo.pop_all()
        self.nodes[broker_id] = node
        self._reachability.append(Reachability(self.brokers.by_id[broker_id], node))
        if metrics is not None:
            self.metrics[broker_id] = metrics

    def _gauges(self, broker_id: int) -> Iterable[tuple[str, float, str]]:
        """Return the metrics of the process."""
        refused = sum(port.refused for port in self._ports.values())
        yield (
            "tidegate_gateway_refused_connections",
            refused,
            "Connections refused before they belonged to a broker",
        )
        yield from self.sharing.gauges()
        yield from self.mutations.gauges()
        if self.processes is not None:
            sharing = self.processes.processes(broker_id)
            yield (
                "tidegate_gateway_processes",
                sharing,
                "Processes of the gateway that share the broker's quotas",
            )


async def run_work(work: Generator[Wait | None, None, Any]) -> Any:
    """Run work in slices to its end, with a turn of the loop after each."""
    try:
        while True:
            wait = next(work)
            if wait is None:
                await asyncio.sleep(0)
            else:
                ended = asyncio.Event()
                wait.then(ended.set)
                await ended.wait()
    except StopIteration as stop:
        return stop.value
