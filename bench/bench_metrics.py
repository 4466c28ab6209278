"""Cost of metrics: counting a request, reading all metrics of a node with many clients, and serving them over HTTP.

Processor time. In slices, and of a response, the longest that one step held the event loop.

python bench/bench_metrics.py
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.server.nodes import MemoryStore, running_node

from tidegate.api_keys import PRODUCE
from tidegate.server.metrics.request_metrics import RequestMetrics
from tidegate.server.monitoring.http_request import parse_head
from tidegate.server.monitoring.metrics_listener import MetricsListener
from tidegate.server.node import Node
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Connection
from tidegate.server.short_collections import ShortCollections
from tidegate.wire import RequestHeader, encode_response

CLIENTS = 46_000  # as many as a table of sensors holds
REQUESTS, RUNS, TURN = 100_000, 10, 10
EVERYBODY = [("client-id", None)]


def count_ns() -> float:
    """Return the ns of counting one request, the best of several runs, without the loop around it."""
    metrics = RequestMetrics([PRODUCE], ["PLAINTEXT"], time.monotonic_ns)
    connection = Connection(id=1, listener="PLAINTEXT", client_host="", local_host="", local_port=1)
    channel = SimpleNamespace(connection=connection)
    exchange = Exchange(channel, RequestHeader(PRODUCE, 9, 1, "c1", 20), 1000, time.monotonic_ns())
    exchange.response = encode_response(PRODUCE, 9, 1, {"responses": [], "throttle_time_ms": 0})
    exchange.throttle_ms = 0
    best = [float("inf"), float("inf")]
    turn = [exchange] * TURN
    for _ in range(RUNS):
        for which, call in enumerate((metrics.count, lambda exchanges: None)):
            begun = time.process_time_ns()
            for _ in range(REQUESTS // TURN):
                call(turn)
            best[which] = min(best[which], (time.process_time_ns() - begun) / REQUESTS)
        metrics.tick()
    return best[0] - best[1]


async def scrape(node: Node, now_ms: int) -> None:
    """Read all metrics, at once and in slices, and print what that took."""
    begun = time.process_time()
    count = sum(1 for _ in node.metrics(now_ms))
    print(f"{count:,} metrics at once: {1000 * (time.process_time() - begun):.0f} ms")
    holds, begun, held_since = [], time.process_time(), time.thread_time_ns()
    async for _ in node.metrics_in_slices(now_ms):
        holds.append((time.thread_time_ns() - held_since) / 1e6)
        await asyncio.sleep(0)
        held_since = time.thread_time_ns()
    holds.sort()
    print(
        f"in {len(holds)} slices: {1000 * (time.process_time() - begun):.0f} ms, "
        f"each {holds[len(holds) // 2]:.2f} ms, the longest {holds[-1]:.1f} ms"
    )


async def serve(node: Node) -> None:
    """Make the responses of the metrics listener, and print what that took."""
    listener = MetricsListener(node, None)
    for path in ("/metrics", "/entities", "/explain?client-id=client-1"):
        holds: list[float] = []
        watching = asyncio.create_task(watch(holds))
        await asyncio.sleep(0)
        begun = time.process_time()
        response = await listener.respond(parse_head(f"GET {path} HTTP/1.1\r\n\r\n".encode()))
        took_ms = 1000 * (time.process_time() - begun)
        await asyncio.sleep(0)
        watching.cancel()
        holds.sort()
        print(
            f"{path}: {sum(map(len, response.body)):,} bytes in {took_ms:.0f} ms, {len(holds)} steps, "
            f"each {holds[len(holds) // 2]:.2f} ms, the longest {holds[-1]:.1f} ms"
        )


async def watch(holds: list[float]) -> None:
    """Add the processor time in ms between two turns of this task, until it is cancelled."""
    since = time.thread_time_ns()
    while True:
        await asyncio.sleep(0)
        holds.append((time.thread_time_ns() - since) / 1e6)
        since = time.thread_time_ns()


async def main() -> None:
    """Measure all of it."""
    print(f"counting a request: {count_ns():.0f} ns")
    with tempfile.TemporaryDirectory() as name:
        async with running_node(Path(name), MemoryStore(), {}) as running:
            node, admin = running.node, await running.connect("admin")
            for key in ("producer_byte_rate", "request_percentage"):
                await admin.alter(EVERYBODY, key, 1e9)
            now_ms = node.clock.now_ms()
            for number in range(CLIENTS):
                for manager in (node.managers.produce, node.managers.request):
                    manager.record("ANONYMOUS", f"client-{number}", 1.0, now_ms)
            collections = ShortCollections(asyncio.get_running_loop())
            collections.start()
            await scrape(node, now_ms)
            await serve(node)
            collections.close()


if __name__ == "__main__":
    asyncio.run(main())
