"""Fuzzing a whole node: mutated frames on many connections; no traceback, no silence, no connection left behind.

A run in the test suite is short. For a long one: `python -m tests.fuzz.test_node_fuzz FRAMES [SEED]`.
"""

import asyncio
import logging
import random
import struct
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.fuzz.test_wire_fuzz import mutated, steps
from tests.server.whole_node import whole_node
from tests.wire.odd_messages import odd_frames

from tidegate.in_slices import run_at_once
from tidegate.wire import API_BY_KEY, ProtocolError, decode_request_header, encode_request, read_request

SHORT_RUN_FRAMES = 1500
FRAMES_PER_CONNECTION = 2
CONNECTIONS = 25
QUIET_S = 20.0  # an answer or the end of the connection within this, on a busy machine
MAX_WAIT_MS = 20
PROGRESS_FRAMES = 50_000  # of a long run
MAX_PARTITIONS = 3

PRODUCE, FETCH, CREATE_TOPICS, CREATE_PARTITIONS, ALTER_QUOTAS = 0, 1, 19, 37, 49


def material(handlers):
    """Return frames of all served APIs: recorded ones, and one in ten of those with an odd value."""
    frames = [step.request for step in steps() if step.api_key in handlers]
    for key in handlers:
        for version in range(API_BY_KEY[key].min_version, API_BY_KEY[key].max_version + 1):
            frames += [frame for _, frame in list(odd_frames(key, version))[::10]]
    return frames


def harmless(frame):
    """Return a frame that asks for no long wait, no quota, no host's name and few partitions: they only take time."""
    try:
        header = decode_request_header(frame)
        message = read_request(header.api_key, header.api_version, frame, header.body_at)
    except ProtocolError:
        return frame
    if header.api_key == FETCH:
        message["max_wait_ms"] = min(message["max_wait_ms"], MAX_WAIT_MS)
    elif header.api_key == ALTER_QUOTAS:
        message["validate_only"] = True
        for entry in message["entries"]:
            for part in entry["entity"]:
                if part["entity_type"] == "ip":
                    part["entity_name"] = "127.0.0.1"
    elif header.api_key in (CREATE_TOPICS, CREATE_PARTITIONS):
        for topic in message["topics"]:
            name = "num_partitions" if header.api_key == CREATE_TOPICS else "count"
            topic[name] = min(topic[name], MAX_PARTITIONS)
            topic["assignments"] = (topic["assignments"] or [])[:MAX_PARTITIONS]
    else:
        return frame
    ids = header.correlation_id, header.client_id[:100]
    return encode_request(header.api_key, header.api_version, *ids, message)[4:]


class _Failures(logging.Handler):
    """Keeps what was logged with a traceback."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        """Keep it."""
        if record.exc_info:
            self.seen.append(self.format(record))


async def converse(port, frames):
    """Send frames, end, and read until the node ends too. Raises `TimeoutError` where it does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        writer.write_eof()
        async with asyncio.timeout(QUIET_S):
            while await reader.read(1 << 20):
                pass
    except ConnectionError:
        pass
    finally:
        writer.close()


async def fuzz(directory, seed, frames, *, report=False):
    """Send so many frames; fail where anything is logged with a traceback or a connection stays."""
    source, failures, unhandled = random.Random(seed), _Failures(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    log = logging.getLogger("tidegate")
    log.addHandler(failures)
    try:
        async with whole_node(directory) as node:
            run_at_once(node.storage.topics.create_in_slices("x", 1, {}))
            front = node.node._front
            known = material([key for key in node.node.handlers if key in API_BY_KEY])
            port, sent = node.node.listeners["PLAINTEXT"].port, 0
            while sent < frames:
                each = [
                    [harmless(mutated(source, source.choice(known))) for _ in range(FRAMES_PER_CONNECTION)]
                    for _ in range(CONNECTIONS)
                ]
                await asyncio.gather(*(converse(port, some) for some in each))
                sent += CONNECTIONS * FRAMES_PER_CONNECTION
                if report and sent % PROGRESS_FRAMES < CONNECTIONS * FRAMES_PER_CONNECTION:
                    print(sent, "frames", flush=True)
                assert not failures.seen, (seed, sent, failures.seen[0])
                assert not unhandled, (seed, sent, unhandled[0])
            until = time.monotonic() + QUIET_S
            while front.channels and time.monotonic() < until:
                await asyncio.sleep(0.01)
            assert not front.channels, (seed, [channel.held for channel in front.channels])
    finally:
        log.removeHandler(failures)
    return sent


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_short_run(tmp_path):
    """Some thousand mutated frames bring answers and ends of connections, and nothing else."""
    assert asyncio.run(fuzz(tmp_path, random.randrange(2**32), SHORT_RUN_FRAMES)) >= SHORT_RUN_FRAMES


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    first_seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    with tempfile.TemporaryDirectory() as where:
        begun = time.monotonic()
        print(
            "seed",
            first_seed,
            "frames",
            asyncio.run(fuzz(Path(where), first_seed, int(sys.argv[1]), report=True)),
        )
        print(f"{time.monotonic() - begun:.0f} s")
