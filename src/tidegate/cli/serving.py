"""The server process: assembles a broker from its parts and runs it until it is stopped."""

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidegate import __version__
from tidegate.broker.cluster import ClusterView
from tidegate.broker.handlers import handler_table
from tidegate.broker.node_groups import NodeGroups
from tidegate.broker.quota_effects import QuotaEffects
from tidegate.broker.storage_settings import follow_settings, storage_config
from tidegate.cli.arguments import EXIT_ERROR
from tidegate.cli.log_lines import LogLines
from tidegate.cli.usage_group import share_usage
from tidegate.clock import SystemClock
from tidegate.config.properties import load_properties
from tidegate.errors import ConfigError, TidegateError
from tidegate.log_format import JSON, formatter
from tidegate.quota.managers.extensions import THROTTLE_MAX_MS
from tidegate.scheduling import Scheduler
from tidegate.server.administration.acl_administration import AclAdministration
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.audit import AUDIT_LOGGER
from tidegate.server.authentication.scram_credentials import ScramCredentials
from tidegate.server.connection.turn_loop import TurnLoop
from tidegate.server.listening.listener_config import host_and_port
from tidegate.server.listening.network import SocketNetwork
from tidegate.server.monitoring.metrics_listener import MetricsListener
from tidegate.server.node import Node
from tidegate.server.repeated_lines import RepeatedLines
from tidegate.server.requests.recorder import Recorder, open_recorder
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

__all__ = [
    "cluster_of",
    "fresh_port_file",
    "list_settings",
    "listen_on",
    "load_config",
    "run_process",
    "serve",
    "serve_nodes",
    "settings_of",
    "stop_event",
    "storage_config",
    "tell",
    "write_ports",
    "written_to",
]

_log = logging.getLogger("tidegate.server")
_lifecycle = logging.getLogger("tidegate.serve")  # start and end, also without --verbose

_SUM_UP_EVERY_S = 10.0
_NOBODY = (
    "no client can log in: all listeners use SCRAM, and no SCRAM user exists; hint: add a listener at 127.0.0.1 "
    "with PLAINTEXT or PLAIN, and create the first user through it (kafka-configs)"
)
_STDIN = 0  # a descriptor
_INPUT_BYTES = 4096  # read and ignored at a time
_LOAD_LATER_S = 0.1  # what the first requests do not need


def list_settings() -> int:
    """Print every setting, its default and what it means."""
    for setting in SETTINGS.values():
        default = str(setting.default).lower() if isinstance(setting.default, bool) else setting.default
        print(f"{setting.name}={default}\n    {setting.doc}")
    return 0


def serve(args: argparse.Namespace) -> int:
    """Serve until SIGINT, SIGTERM, or SIGHUP (a terminal that closes), unless that is ignored (nohup)."""

    def start(config: ServerConfig, repeated: RepeatedLines) -> Coroutine[Any, Any, None]:
        return _serve(node_configs(config, args.nodes), args, repeated)

    return run_process(args, start)


def run_process(
    args: argparse.Namespace,
    start: Callable[[ServerConfig, RepeatedLines], Coroutine[Any, Any, None]],
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Load the settings, set up the log, and run what `start` returns to its end; return the exit code.

    defaults: values of settings that were not given.
    """
    handler = _log_lines()
    handler.setFormatter(formatter(args.log_format))
    _set_levels(args.verbose)
    repeated = RepeatedLines(time.monotonic)
    # On the handler: a logger's filter does not see the records of the loggers below it.
    handler.addFilter(repeated)
    logging.getLogger().addHandler(handler)
    try:
        config = load_config(args, defaults)
        for notice in config.notices():
            tell(args, notice, logging.WARNING)
        with asyncio.Runner(loop_factory=TurnLoop) as runner:
            runner.run(start(config, repeated))
    except TidegateError as error:
        if args.log_format != JSON:
            raise
        _lifecycle.error("%s%s", error, f"; hint: {error.hint}" if error.hint else "")
        return EXIT_ERROR
    finally:
        handler.flush()  # before what is printed
    return 0


def _set_levels(verbose: int) -> None:
    """Set what is logged: by default warnings, and what happens rarely, such as audited changes and deletions."""
    logging.getLogger().setLevel(logging.DEBUG if verbose > 1 else logging.WARNING)
    if verbose:
        logging.getLogger("tidegate").setLevel(logging.DEBUG)
    else:
        for name in (AUDIT_LOGGER, "tidegate.broker", "tidegate.storage", _lifecycle.name):
            logging.getLogger(name).setLevel(logging.INFO)


def tell(args: argparse.Namespace, text: str, level: int = logging.INFO) -> None:
    """Print a message on stderr beside the log; with JSON, write it as a line of the log."""
    if args.log_format == JSON:
        _lifecycle.log(level, "%s", text)
    else:
        print(f"warning: {text}" if level == logging.WARNING else text, file=sys.stderr, flush=True)


def _log_lines() -> logging.Handler:
    """Return the handler that logs to stderr without waiting for its reader; a plain one without a descriptor."""
    try:
        return LogLines(sys.stderr.fileno())
    except (OSError, ValueError):
        return logging.StreamHandler(sys.stderr)


def load_config(args: argparse.Namespace, defaults: Mapping[str, str]) -> ServerConfig:
    """Return the settings of the command line: those of --config, --override and the other options."""
    texts = {**defaults, **(load_properties(Path(args.config)) if args.config else {})}
    for override in args.override:
        name, separator, value = override.partition("=")
        if not separator or not name:
            shown = re.split(r"[\s:=]", override.strip())[0]  # what is behind that may be a password
            raise ConfigError(f"--override begins with {shown!r}, expected KEY=VALUE")
        texts[name.strip()] = value
    if args.data is not None:
        texts["log.dirs"] = args.data
        # Kafka's other name for the same setting.
        texts.pop("log.dir", None)
    if args.port is not None:
        listen_on(texts, args.port)
    return ServerConfig.load(texts)


def listen_on(texts: dict[str, str], port: int) -> None:
    """Set the port of a broker's only listener, and its advertised port if that was the same.

    Controllers' listeners stay: a properties file of Kafka has one, and Tidegate does not serve it.
    Raises `ConfigError`.
    """
    if not 0 <= port <= 65_535:
        raise ConfigError(f"--port is {port}, expected 0 to 65535")
    listeners = texts.get("listeners", SETTINGS["listeners"].default)
    controllers = {name.strip().upper() for name in texts.get("controller.listener.names", "").split(",")}
    own = [part for part in listeners.split(",") if _name_of(part) not in controllers]
    if len(own) > 1:
        raise ConfigError(
            f"--port is {port}, expected no --port with several listeners: {listeners}",
            hint="set the port of each in listeners",
        )
    for part in own:
        place, _, old_port = part.strip().rpartition(":")
        texts["listeners"] = f"{place}:{port}"
        if "advertised.listeners" in texts:
            told = texts["advertised.listeners"].split(",")
            texts["advertised.listeners"] = ",".join(
                _moved(each, _name_of(part), old_port, port) for each in told
            )


def _moved(told: str, name: str, old_port: str, port: int) -> str:
    """Return an advertised listener, with the new port if it is this listener and had the old port."""
    place, _, told_port = told.strip().rpartition(":")
    return f"{place}:{port}" if (_name_of(told), told_port) == (name, old_port) else told


def _name_of(listener: str) -> str:
    return listener.partition(":")[0].strip().upper()


async def _serve(configs: Sequence[ServerConfig], args: argparse.Namespace, repeated: RepeatedLines) -> None:
    """Run a node for each of `configs`; the first is the controller. They share storage and quotas."""
    loop = asyncio.get_running_loop()
    stop = stop_event(args, repeated)
    clock, first = SystemClock(), configs[0]
    port_file = fresh_port_file(args)
    Storage.check_owner(first.data_dir)
    with written_to(first.data_dir):
        make_private_directory(first.data_dir)
    if args.usage_group is not None:
        share_usage(args.usage_group, usage_dir=first.usage_dir, data_dir=first.data_dir)
    recorders: list[Recorder] = []
    nodes: list[Node] = []
    collections = ShortCollections(loop)
    try:
        for config in configs:
            with written_to(config.usage_dir):
                recorder = open_recorder(config, clock, args.log_format)
            if recorder is not None:
                recorders.append(recorder)
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
        quotas = QuotaAdministration(storage.store, loop)
        metrics: list[MetricsListener] = []
        try:
            with written_to(first.usage_dir):
                quotas.load()
                start_housekeeping(storage, loop)
                credentials = ScramCredentials(storage.store, exact=storage.config.kafka_exact)
                serve_nodes(nodes, storage, quotas, credentials=credentials)
            for node in nodes:
                if node.config.metrics is not None:
                    metrics.append(MetricsListener.start(node, node.config.metrics))
            collections.start()
            if port_file is not None:
                write_ports(port_file, nodes)
            if first.is_by_scram_alone and credentials.is_empty:
                tell(args, _NOBODY, logging.WARNING)
            for text in _announcements(nodes):
                tell(args, text)
            for listener in metrics:
                tell(args, f"tidegate metrics at {listener.url}")
            # Loads the CRC library (`wire.checksum`). The first request comes before the first batch.
            loop.call_later(_LOAD_LATER_S, lambda: checksum.crc32c(b""))
            await stop.wait()
        finally:
            collections.close()
            for listener in metrics:
                listener.close()
            for node in reversed(nodes):
                node.close()
            quotas.close()
            storage.close()
    finally:
        for recorder in recorders:
            recorder.close()


def stop_event(args: argparse.Namespace, repeated: RepeatedLines) -> asyncio.Event:
    """Return the event that a signal or the end of standard input sets; sum up repeated lines from now on."""
    loop = asyncio.get_running_loop()
    _sum_up(repeated, loop)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, _stop, stop, f"received {number.name}")
    if args.stop_on_eof:
        _watch_input(loop, stop)
    return stop


def fresh_port_file(args: argparse.Namespace) -> Path | None:
    """Return the path of the port file, if one is wanted; delete the file of an earlier broker."""
    if args.port_file is None:
        return None
    port_file = Path(args.port_file)
    with _port_file_written(port_file):
        port_file.unlink(missing_ok=True)
    return port_file


def _stop(stop: asyncio.Event, reason: str) -> None:
    """Stop the broker, and log the reason."""
    if not stop.is_set():
        _lifecycle.info("stopping: %s", reason)
        stop.set()


def _watch_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop the broker when standard input ends. Raises `ConfigError` if it is a file or is closed."""

    def read() -> None:
        if not os.read(_STDIN, _INPUT_BYTES):
            loop.remove_reader(_STDIN)
            _stop(stop, "standard input was closed")

    try:
        loop.add_reader(_STDIN, read)
    except OSError as error:
        raise ConfigError(
            f"cannot wait for the end of standard input: {error.strerror}",
            hint="--stop-on-eof needs a pipe as standard input, open for as long as the broker runs",
        ) from error


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


def _sum_up(repeated: RepeatedLines, loop: asyncio.AbstractEventLoop) -> None:
    """Log the number of repeated lines that were not written, every `_SUM_UP_EVERY_S` seconds."""
    for line in repeated.sums(time.monotonic()):
        _log.warning("%s", line)
    loop.call_later(_SUM_UP_EVERY_S, _sum_up, repeated, loop)


@contextmanager
def _written(what: str, hint: str) -> Iterator[None]:
    """Raise `ConfigError` that `what` cannot be written if the code inside cannot write it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {what}: {error.strerror or error}", hint=hint) from error


def written_to(directory: Path) -> AbstractContextManager[None]:
    hint = "use a directory that the broker can write to, with free disk space (--data, tidegate.usage.dir)"
    return _written(f"to directory {str(directory)!r}", hint)


def _port_file_written(path: Path) -> AbstractContextManager[None]:
    return _written(
        f"--port-file {str(path)!r}", "use a file in an existing directory that the broker can write to"
    )


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


def write_ports(path: Path, nodes: Iterable[Node]) -> None:
    """Write the ports of the listeners of all nodes, one per line. The file appears complete."""
    ports = [port for node in nodes for _, port in node.bound.values()]
    unfinished = path.with_name(path.name + ".tmp")
    with _port_file_written(path):
        unfinished.write_text("".join(f"{port}\n" for port in ports))
        unfinished.rename(path)


def cluster_of(node: Node, storage: Storage, nodes: Sequence[Node] = ()) -> ClusterView:
    """Return the cluster of `nodes` as one of them sees it; by default it is the only one."""
    endpoints = {each.config["node.id"]: each.advertised for each in nodes or [node]}
    return ClusterView(node.config["node.id"], endpoints, storage.topics)


def settings_of(configs: Iterable[ServerConfig], storage: Storage) -> DynamicSettings:
    """Return the settings of nodes that were changed while they ran."""
    given = {config["node.id"]: config.given for config in configs}
    return DynamicSettings(storage.store, given, exact=storage.config.kafka_exact, defaults=TOPIC_DEFAULTS)
