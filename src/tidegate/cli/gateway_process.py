"""The gateway process: assembles a gateway from its parts and runs it until it is stopped."""

import argparse
import asyncio
import logging
import signal
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from tidegate import __version__
from tidegate.cli.parent_process import Parent, Place
from tidegate.cli.process import (
    code_of_error,
    fresh_port_file,
    hinting,
    is_first,
    lifecycle_log,
    load_config,
    ports_of,
    print_message,
    run_process,
    stop_event,
    write_ports,
    written_to,
)
from tidegate.client.settings import ClientSettings, load_client_settings
from tidegate.errors import ConfigError, TidegateError
from tidegate.gateway.gateway import Gateway
from tidegate.gateway.processes import ONLY, check_processes
from tidegate.gateway.quota_topic import QuotaTopic
from tidegate.gateway.reloading import QuotasOfFile, Reloading
from tidegate.gateway.settings import gateway_logs_in, parse_broker_ids, server_names, upstream_notices
from tidegate.gateway.usage_topic import UsageExchange
from tidegate.open_files import raise_open_files_limit
from tidegate.server.administration.quota_administration import QuotaAdministration, QuotaStore
from tidegate.server.listening.listener_config import ListenerAddress, host_and_port
from tidegate.server.repeated_lines import RepeatedLines
from tidegate.server.requests.recorder import open_recorder
from tidegate.server.settings.config import ServerConfig
from tidegate.server.short_collections import ShortCollections
from tidegate.tls.settings import listed

__all__ = ["run_gateway"]

_DEFAULTS = {"listeners": "PLAINTEXT://127.0.0.1:19092", "log.dirs": "tidegate-gateway"}


def run_gateway(args: argparse.Namespace) -> int:
    """Run the gateway until SIGINT or SIGTERM. SIGHUP reads its files again; without a file, it stops the gateway."""
    given = None if args.upstream_config is None else Path(args.upstream_config)
    with hinting(f"check --upstream-config {args.upstream_config}: it has the settings of a Kafka client"):
        upstream = load_client_settings(args.upstream, given)
    only = None if args.brokers is None else parse_broker_ids(args.brokers)
    if args.listen is not None:
        args.override.append(f"listeners={_plaintext_at(args.listen)}")
    args.port = None
    outcome = _parted(args)
    if isinstance(outcome, int):
        return outcome
    place = outcome

    def start(config: ServerConfig, repeated: RepeatedLines) -> Coroutine[Any, Any, None]:
        return _run(config, upstream, only, args, repeated, place)

    return run_process(args, start, _DEFAULTS)


def _plaintext_at(address: str) -> str:
    """Return the listener at an address. Raises `ConfigError`."""
    listener = f"PLAINTEXT://{address}"
    try:
        ListenerAddress.parse(listener, setting="listeners")
    except ConfigError as error:
        raise ConfigError(
            f"--listen is {address!r}, expected HOST:PORT",
            hint="for example 127.0.0.1:19092 or [::1]:19092; for another protocol: --override listeners=SSL://...",
        ) from error
    return listener


def _parted(args: argparse.Namespace) -> Place | int:
    """Start the processes. Return the place of this one; in their parent, the exit code after they have ended."""
    if args.processes == 1:
        return Place(process=ONLY)
    with lifecycle_log(args) as log:
        try:
            config = load_config(args, _DEFAULTS)
            check_processes(config)
            return Parent(args, log, samples=config.quota_windows.rate.samples).run()
        except TidegateError as error:
            return code_of_error(args, error)


async def _run(
    config: ServerConfig,
    upstream: ClientSettings,
    only: frozenset[int] | None,
    args: argparse.Namespace,
    repeated: RepeatedLines,
    place: Place,
) -> None:
    if place.process.count > 1:
        check_processes(config)
    raise_open_files_limit()
    loop = asyncio.get_running_loop()
    stop = stop_event(args, repeated)
    clock = place.clock
    port_file = fresh_port_file(args)
    names = server_names(config, listed(args.bootstrap_name or ""))
    logs_in = gateway_logs_in(config, None if args.login is None else args.login == "gateway")
    for notice in upstream_notices(config, upstream, logs_in=logs_in) if is_first(args) else ():
        print_message(args, notice, logging.WARNING)
    async with AsyncExitStack() as stack:
        store: QuotaStore
        topic = file = None
        if args.quotas is None:
            store = topic = QuotaTopic(upstream)
            stack.push_async_callback(topic.close)
            await topic.open()
        else:
            store = file = QuotasOfFile(args.quotas)
        quotas = QuotaAdministration(store, loop)
        quotas.load()
        stack.callback(quotas.close)
        with written_to(config.usage_dir):
            config.usage_dir.mkdir(parents=True, exist_ok=True)
            gateway = Gateway(
                config,
                upstream,
                quotas,
                only=only,
                names=names,
                logs_in=logs_in,
                clock=clock,
                open_recorder=lambda node: open_recorder(node, clock, args.log_format),
                process=place.process,
            )
            stack.push_async_callback(gateway.close)
            exchange = UsageExchange(
                upstream,
                gateway.sharing,
                mutations=gateway.mutations,
                now_ms=clock.now_ms,
                is_wanted=gateway.shares_quotas,
            )
            stack.push_async_callback(exchange.close)
            await exchange.open()
            await gateway.start()
        collections = ShortCollections(loop, lambda: any(node.has_work for node in gateway.nodes.values()))
        collections.start()
        stack.callback(collections.close)
        tasks = [loop.create_task(gateway.run()), loop.create_task(exchange.run())]
        if gateway.processes is not None:
            tasks.append(loop.create_task(gateway.processes.run()))
        if topic is not None:
            tasks.append(loop.create_task(topic.follow(quotas)))
        if args.config is not None or file is not None:
            reloading = Reloading(
                gateway, quotas, read_config=lambda: load_config(args, _DEFAULTS), file=file
            )
            loop.add_signal_handler(signal.SIGHUP, reloading.request)  # in the place of `stop_event`
            tasks.append(loop.create_task(reloading.run()))
        for task in tasks:
            stack.push_async_callback(_cancel, task)
        ports, lines = ports_of(gateway.nodes.values()), [*_announcements(gateway)]
        if place.announce is not None:
            place.announce(ports, lines, [*_metrics_announcements(gateway)])
        else:
            if port_file is not None:
                write_ports(port_file, ports)
            for text in (*lines, *_metrics_announcements(gateway)):
                print_message(args, text)
        stopped = loop.create_task(stop.wait())
        stack.callback(stopped.cancel)
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _announcements(gateway: Gateway) -> Iterable[str]:
    """Yield a line with the address of each broker."""
    for broker_id, node in gateway.nodes.items():
        places = ", ".join(host_and_port(*place) for place in node.advertised.values())
        upstream = gateway.brokers.by_id[broker_id].advertised
        yield f"tidegate {__version__} gateway: broker {broker_id} ({upstream}) at {places}; Ctrl-C stops it"


def _metrics_announcements(gateway: Gateway) -> Iterable[str]:
    for broker_id, listener in gateway.metrics.items():
        yield f"tidegate metrics of broker {broker_id} at {listener.url}"
