"""The server process: assembles a broker from its parts and runs it until it is stopped."""

import argparse
import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from tidegate import __version__
from tidegate.broker.cluster import ClusterView
from tidegate.broker.handlers import handler_table
from tidegate.broker.node_groups import NodeGroups
from tidegate.broker.quota_effects import QuotaEffects
from tidegate.broker.storage_settings import follow_settings, storage_config
from tidegate.cli.process import (
    fresh_port_file,
    ports_of,
    print_message,
    run_process,
    stop_event,
    write_ports,
    written_to,
)
from tidegate.cli.usage_group import share_usage
from tidegate.clock import SystemClock
from tidegate.open_files import raise_open_files_limit
from tidegate.quota.managers.extensions import CLUSTER_WIDE, THROTTLE_MAX_MS
from tidegate.scheduling import Scheduler
from tidegate.server.administration.acl_administration import AclAdministration
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.authentication.scram_credentials import ScramCredentials
from tidegate.server.listening.listener_config import host_and_port
from tidegate.server.listening.network import SocketNetwork
from tidegate.server.node import Node
from tidegate.server.repeated_lines import RepeatedLines
from tidegate.server.requests.recorder import open_recorder
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.dynamic_settings import DynamicSettings
from tidegate.server.settings.node_configs import node_configs
from tidegate.server.settings.table import SETTINGS
from tidegate.server.short_collections import ShortCollections
from tidegate.storage import Storage
from tidegate.storage.housekeeping import start_housekeeping
from tidegate.storage.private_files import make_private_directory
from tidegate.storage.topics.topic_defaults import TOPIC_DEFAULTS
from tidegate.wire import checksum

if TYPE_CHECKING:
    from tidegate.server.monitoring.metrics_listener import MetricsListener
    from tidegate.server.settings.metrics_settings import MetricsConfig

__all__ = ["cluster_of", "list_settings", "serve", "serve_nodes", "settings_of", "storage_config"]

_NOBODY = (
    "no client can log in: all listeners use SCRAM, and no SCRAM user exists; hint: add a listener at 127.0.0.1 "
    "with PLAINTEXT or PLAIN, and create the first user through it (kafka-configs)"
)
_LOAD_LATER_S = 0.1  # delay before loading modules that the first requests do not need


def list_settings() -> int:
    """Print each setting with its default and its description."""
    for setting in SETTINGS.values():
        default = str(setting.default).lower() if isinstance(setting.default, bool) else setting.default
        print(f"{setting.name}={default}\n    {setting.doc}")
    return 0


def serve(args: argparse.Namespace) -> int:
    """Serve until SIGINT, SIGTERM, or SIGHUP (a closed terminal), unless SIGHUP is ignored (nohup)."""

    def start(config: ServerConfig, repeated: RepeatedLines) -> Coroutine[Any, Any, None]:
        return _serve(node_configs(config, args.nodes), args, repeated)

    return run_process(args, start)


async def _serve(configs: Sequence[ServerConfig], args: argparse.Namespace, repeated: RepeatedLines) -> None:
    """Run a node for each of `configs`; the first is the controller. They share storage and quotas."""
    loop = asyncio.get_running_loop()
    raise_open_files_limit()  # before the recorder starts a thread
    stop = stop_event(args, repeated)
    clock, first = SystemClock(), configs[0]
    if first.given.get(CLUSTER_WIDE, "none") != "none":
        print_message(
            args, f"{CLUSTER_WIDE!r} has no effect: only a gateway has cluster-wide quotas", logging.WARNING
        )
    port_file = fresh_port_file(args)
    Storage.check_owner(first.data_dir)
    with written_to(first.data_dir):
        make_private_directory(first.data_dir)
    if args.usage_group is not None:
        share_usage(args.usage_group, usage_dir=first.usage_dir, data_dir=first.data_dir)
    nodes: list[Node] = []
    with ExitStack() as stack:
        for config in configs:
            with written_to(config.usage_dir):
                recorder = open_recorder(config, clock, args.log_format)
            if recorder is not None:
                stack.callback(recorder.close)
            nodes.append(
                Node(
                    config,
                    clock=clock,
                    loop=loop,
                    network=SocketNetwork(loop, clock.monotonic_ns),
                    recorder=recorder,
                    controller=nodes[0] if nodes else None,
                )
            )
        storage = Storage.open(first.data_dir, storage_config(first), clock)
        stack.callback(storage.close)
        quotas = QuotaAdministration(storage.store, loop)
        stack.callback(quotas.close)
        for node in nodes:
            stack.callback(node.close)
        with written_to(first.usage_dir):
            quotas.load()
            start_housekeeping(storage, loop)
            credentials = ScramCredentials(storage.store, exact=storage.config.kafka_exact)
            serve_nodes(nodes, storage, quotas, credentials=credentials)
        metrics = [
            stack.enter_context(closing(_start_metrics(node, node.config.metrics)))
            for node in nodes
            if node.config.metrics is not None
        ]
        collections = ShortCollections(loop, lambda: any(node.has_work for node in nodes))
        stack.callback(collections.close)
        collections.start()
        if port_file is not None:
            write_ports(port_file, ports_of(nodes))
        if first.is_by_scram_alone and credentials.is_empty:
            print_message(args, _NOBODY, logging.WARNING)
        for text in _announcements(nodes):
            print_message(args, text)
        for listener in metrics:
            print_message(args, f"tidegate metrics at {listener.url}")
        # Load the CRC library (`wire.checksum`) later: the first batch needs it, the first requests do not.
        loop.call_later(_LOAD_LATER_S, lambda: checksum.crc32c(b""))
        await stop.wait()


def serve_nodes(
    nodes: Sequence[Node],
    storage: Storage,
    quotas: QuotaAdministration,
    scheduler: Scheduler | None = None,
    credentials: ScramCredentials | None = None,
) -> DynamicSettings:
    """Serve requests on all nodes of a cluster; return their settings. Raises `ConfigError`.

    scheduler: runs the deferred work of handlers; by default the running event loop. credentials: those of SCRAM
    users, by default those in the storage.
    """
    settings = settings_of([node.config for node in nodes], storage)
    acls = AclAdministration.of(nodes[0].config, storage.store)
    credentials = credentials or ScramCredentials(storage.store, exact=storage.config.kafka_exact)
    scheduler = asyncio.get_running_loop() if scheduler is None else scheduler
    clusters = [cluster_of(node, storage, nodes) for node in nodes]
    groups = [NodeGroups(storage, cluster, scheduler) for cluster in clusters]
    for node, cluster, of_node in zip(nodes, clusters, groups, strict=True):
        handlers = handler_table(storage, cluster, settings, scheduler, of_node)
        node.serve(handlers, quotas, storage.turn, cluster.metadata, settings, acls, credentials)
    throttle_max_ms = nodes[0].config[THROTTLE_MAX_MS]
    effects = QuotaEffects(groups, nodes[0].managers, storage, clusters[0], throttle_max_ms=throttle_max_ms)
    quotas.subscribe(effects)
    effects.start(scheduler)

    def on_change() -> None:
        for node in nodes:
            node.callback.on_cluster_change()

    storage.topics.on_change = on_change
    follow_settings(storage, settings, nodes[0].config["node.id"])
    return settings


def _start_metrics(node: Node, config: "MetricsConfig") -> "MetricsListener":
    """Start the metrics listener of a node. Its modules are loaded only where there is one."""
    from tidegate.server.monitoring.metrics_listener import MetricsListener

    return MetricsListener.start(node, config)


def _announcements(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield a line with the addresses of each node, by the listeners that it advertises."""
    for node in nodes:
        addresses = [_place(node, name) for name in node.advertised]
        number = f" node {node.config['node.id']}" if len(nodes) > 1 else ""
        yield (
            f"tidegate {__version__}{number} listening on {', '.join(addresses)}, data in {node.config.data_dir};"
            " Ctrl-C stops it"
        )


def _place(node: Node, listener: str) -> str:
    """Return the address for clients of a listener, and the own address if another port is advertised."""
    (host, port), (own_host, own_port) = node.advertised[listener], node.bound[listener]
    told = host_and_port(host, port)
    notes = [listener] if len(node.advertised) > 1 else []
    if port != own_port:
        notes.append(f"advertised as {told}")
        told = host_and_port(own_host or "*", own_port)
    return f"{told} ({', '.join(notes)})" if notes else told


def cluster_of(node: Node, storage: Storage, nodes: Sequence[Node] = ()) -> ClusterView:
    """Return the cluster of `nodes` as one of them sees it; by default it is the only one."""
    endpoints = {each.config["node.id"]: each.advertised for each in nodes or [node]}
    return ClusterView(node.config["node.id"], endpoints, storage.topics)


def settings_of(configs: Iterable[ServerConfig], storage: Storage) -> DynamicSettings:
    """Return the settings that were changed while the nodes ran."""
    given = {config["node.id"]: config.given for config in configs}
    return DynamicSettings(storage.store, given, exact=storage.config.kafka_exact, defaults=TOPIC_DEFAULTS)
