"""The gateway process: assembles a gateway from its parts and runs it until it is stopped."""

import argparse
import asyncio
from collections.abc import Coroutine, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from tidegate import __version__
from tidegate.cli.serving import fresh_port_file, run_process, stop_event, tell, write_ports, written_to
from tidegate.client.settings import ClientSettings, load_client_settings
from tidegate.clock import SystemClock
from tidegate.config.quotas_file import load_quotas_file
from tidegate.errors import TidegateError
from tidegate.gateway.gateway import Gateway, follower
from tidegate.gateway.quota_topic import QuotaTopic
from tidegate.gateway.settings import parse_broker_ids
from tidegate.quota import QuotaRecord
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.administration.stores import QuotaStore
from tidegate.server.monitoring.metrics_listener import MetricsListener
from tidegate.server.repeated_lines import RepeatedLines
from tidegate.server.requests.recorder import open_recorder
from tidegate.server.settings.config import ServerConfig
from tidegate.server.short_collections import ShortCollections

__all__ = ["run_gateway"]

_DEFAULTS = {"listeners": "PLAINTEXT://127.0.0.1:19092", "log.dirs": "tidegate-gateway"}


class QuotasOfFile:
    """The quotas of a file, as a `QuotaStore` that stores nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._records = list(load_quotas_file(path).records())

    def load_quotas(self) -> Iterable[QuotaRecord]:
        """Return the records of the file."""
        return [record for record in self._records if isinstance(record, QuotaRecord)]

    def apply_quota_records_in_slices(self, records: Sequence[QuotaRecord]) -> Generator[Any, None, None]:
        """Raise `TidegateError`: the quotas of a file cannot be altered."""
        raise TidegateError(f"the quotas of this gateway are those of {self._path}", hint="change the file")
        yield


def run_gateway(args: argparse.Namespace) -> int:
    """Run the gateway until SIGINT, SIGTERM, or SIGHUP, unless that is ignored (nohup)."""
    upstream = load_client_settings(
        args.upstream, None if args.upstream_config is None else Path(args.upstream_config)
    )
    only = None if args.brokers is None else parse_broker_ids(args.brokers)
    defaults = dict(_DEFAULTS)
    if args.listen is not None:
        args.override.append(f"listeners=PLAINTEXT://{args.listen}")
    args.port = None

    def start(config: ServerConfig, repeated: RepeatedLines) -> Coroutine[Any, Any, None]:
        return _run(config, upstream, only, args, repeated)

    return run_process(args, start, defaults)


async def _run(
    config: ServerConfig,
    upstream: ClientSettings,
    only: frozenset[int] | None,
    args: argparse.Namespace,
    repeated: RepeatedLines,
) -> None:
    loop = asyncio.get_running_loop()
    stop = stop_event(args, repeated)
    clock = SystemClock()
    port_file = fresh_port_file(args)
    async with AsyncExitStack() as stack:
        store: QuotaStore
        if args.quotas is None:
            store = topic = QuotaTopic(upstream)
            stack.push_async_callback(topic.close)
            await topic.open()
        else:
            store, topic = QuotasOfFile(args.quotas), None
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
                clock=clock,
                open_recorder=lambda node: open_recorder(node, clock, args.log_format),
            )
            stack.push_async_callback(gateway.close)
            await gateway.start()
        for node in gateway.nodes.values():
            if node.config.metrics is not None:
                listener = await MetricsListener.start(node, node.config.metrics)
                stack.callback(listener.close)
                tell(args, f"tidegate metrics of broker {node.config['node.id']} at {listener.url}")
        collections = ShortCollections(loop)
        collections.start()
        stack.callback(collections.close)
        tasks = [loop.create_task(gateway.run())]
        if topic is not None:
            tasks.append(loop.create_task(topic.follow(follower(quotas))))
        for task in tasks:
            stack.push_async_callback(_cancel, task)
        if port_file is not None:
            write_ports(port_file, gateway.nodes.values())
        for text in _announcements(gateway):
            tell(args, text)
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
        places = ", ".join(f"{host}:{port}" for host, port in node.advertised.values())
        told = gateway.brokers.by_id[broker_id].told
        yield f"tidegate {__version__} gateway: broker {broker_id} ({told}) at {places}; Ctrl-C stops it"
