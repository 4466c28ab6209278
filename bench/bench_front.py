"""The front's own cost of a request: frame to answer, without sockets, with quotas defined and usage recorded.

32 connections are ready together, as under load; what they produce is written to a real file.

python bench/bench_front.py [--profile NAME]
"""

import argparse
import asyncio
import cProfile
import pstats
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.ladder.rungs import frames, produce_frame

from tidegate.broker.handlers import handler_table
from tidegate.cli.serving import cluster_of, settings_of, storage_config
from tidegate.clock import SystemClock
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaRecord
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.connection.channel import Channel
from tidegate.server.listening.network import SocketNetwork
from tidegate.server.node import Node
from tidegate.server.requests.handler import Connection
from tidegate.server.requests.recorder import Recorder
from tidegate.server.settings.config import ServerConfig
from tidegate.storage import Storage
from tidegate.storage.housekeeping import start_housekeeping
from tidegate.wire import encode_request

ROUNDS, TURNS, CONNECTIONS = 30, 32, 32


class Endless:
    """A transport that receives the same frame again and again, and sends to nowhere."""

    def __init__(self, frame: bytes) -> None:
        self._frame, self._size = frame, len(frame)

    def recv_into(self, buffer) -> int:
        """Copy the frame."""
        buffer[: self._size] = self._frame
        return self._size

    def send(self, data) -> int:
        """Accept all bytes."""
        return len(data)

    def send_some(self, out) -> bool:
        """Accept all parts."""
        out.clear()
        return True

    def set_client(self, *_) -> None:
        """Ignore the client."""

    def start_reading(self, *_) -> None:
        """Ignore it."""

    pause_reading = close = start_reading


class InSession(Endless):
    """A transport that receives a Fetch v12 of a session, each with the next epoch; the first makes the session."""

    SESSION = struct.Struct(">ii")
    ID_AT = 15  # in an answer: behind its length, correlation id, tags, throttle time and error

    def __init__(self, frame: bytes) -> None:
        super().__init__(frame)
        self._at = frame.index(self.SESSION.pack(0, -1))
        self._id = 0
        self._epoch = 0

    def recv_into(self, buffer) -> int:
        """Copy the frame, with the session."""
        size = super().recv_into(buffer)
        self.SESSION.pack_into(buffer, self._at, self._id, self._epoch)
        self._epoch += 1
        return size

    def send(self, data) -> int:
        """Accept all bytes, and note the session's id."""
        if not self._id:
            (self._id,) = struct.unpack_from(">i", data, self.ID_AT)
        return len(data)


async def main() -> None:
    """Measure every frame that needs no file to be sent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        clock = SystemClock()
        config = ServerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": name})
        recorder = Recorder(Path(name) / "spool", node_id=1, clock=clock)
        loop = asyncio.get_running_loop()
        network = SocketNetwork(loop, clock.monotonic_ns)
        node = Node(config, clock=clock, loop=loop, network=network, recorder=recorder)
        storage = Storage.open(Path(name), storage_config(config), clock)
        keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
        entity = (("client-id", None),)
        run_at_once(
            storage.store.apply_quota_records_in_slices(
                [QuotaRecord(entity=entity, key=key, value=1e12) for key in keys]
            )
        )
        quotas = QuotaAdministration(storage.store, asyncio.get_running_loop())
        quotas.load()
        start_housekeeping(storage, loop)
        handlers = handler_table(storage, cluster_of(node, storage), settings_of([config], storage))
        node.serve(handlers, quotas, storage.turn)
        create = {"name": "", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        topics = [{**create, "name": topic} for topic in ("small", "kilo", "fetch16k")]
        message = {"topics": topics, "timeout_ms": 1000, "validate_only": False}
        await _run(node, encode_request(19, 5, 1, "bench", message), 1)
        await _run(node, produce_frame("fetch16k", 16_000), 1)
        for frame_name, frame in frames().items():
            if frame_name in ("produce1m", "fetch1m"):  # comes in parts; leaves by sendfile
                continue
            if args.profile:
                if args.profile == frame_name:
                    with cProfile.Profile() as profile:
                        await _run(node, frame, 625)
                    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
                continue
            times = sorted([await _run(node, frame, TURNS) for _ in range(ROUNDS)])
            print(f"{frame_name:14} {times[0]:7.2f} µs best, {times[ROUNDS // 2]:7.2f} µs median")
            if frame_name == "fetch16k":
                times = sorted([await _run(node, frame, TURNS, InSession) for _ in range(ROUNDS)])
                print(f"{'in a session':14} {times[0]:7.2f} µs best, {times[ROUNDS // 2]:7.2f} µs median")
        node.close()
        storage.close()


async def _run(node: Node, frame: bytes, turns: int, transport: type[Endless] = Endless) -> float:
    """Return the microseconds of processor time for each request."""
    channels = [_channel(node, transport(frame), number) for number in range(CONNECTIONS)]
    front = node._front
    front.begin_turn(time.monotonic_ns())
    for _ in range(1 if transport is Endless else 2):  # the second of a session is the first that is known
        for channel in channels[:1] if transport is Endless else channels:
            channel._on_readable()  # a first request may be served in slices: it is known then
        front.finish_turn(1 << 62)
        while any(channel.held for channel in channels):
            await asyncio.sleep(0.001)
        front.begin_turn(time.monotonic_ns())
    front.finish_turn(1 << 62)
    begun = time.process_time_ns()
    for _ in range(turns):
        front.begin_turn(time.monotonic_ns())
        for channel in channels:
            channel._on_readable()
        front.finish_turn(1 << 62)
    took = time.process_time_ns() - begun
    for channel in channels:
        channel.close()
    return took / (turns * CONNECTIONS) / 1000


def _channel(node: Node, transport: Endless, number: int) -> Channel:
    connection = Connection(
        id=number, listener="PLAINTEXT", client_host="127.0.0.1", local_host="127.0.0.1", local_port=1
    )
    node.connections.admit("PLAINTEXT", "127.0.0.1", now_ms=0)
    return Channel(
        transport,
        connection,
        handlers=node.handlers,
        owner=node._front,
        buffers=node._buffers,
        memory=node._memory,
        answers=node._answers,
        monotonic_ns=time.monotonic_ns,
        max_frame_bytes=1 << 26,
    )


if __name__ == "__main__":
    asyncio.run(main())
