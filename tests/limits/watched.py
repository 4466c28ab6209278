"""A broker whose holds and memory are watched, its neighbour, and what both say of one piece of work."""

import json
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.broker import Broker
from tests.e2e.plain_client import receive_frame, receive_size
from tests.limits.frames import (
    CREATE_TOPICS,
    LIST_OFFSETS,
    METADATA,
    create_topics,
    list_offsets,
    new_topic,
    request,
)

from tidegate.wire import API_BY_KEY, read_response

HERE = Path(__file__).parent
TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 3.0
QUIET_LOOK_S = 0.1
QUIET_BYTES = 30_000
"""So much grows what a broker with one neighbour has in use within that time; one that compiles codecs grows faster."""
BLOCK_BYTES = 100
"""What a block of the interpreter's own allocator is taken for: most are ints, texts, small tuples and dicts."""

_STATUS = re.compile(r"^Vm(HWM|RSS):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of one piece of work.

    hold_ms, hold_cpu_ms: the longest hold of the loop, and its processor time; stacks: where it was then.
    steps_cpu_ms: the processor time of the longest steps of work in slices, by where they began and ended.
    peak_bytes, kept_bytes: the most memory taken meanwhile, and what was still in use when it was over.
    neighbour_ms: the latencies of the neighbour's requests, in order, less its own waits for a processor.
    processor_wait_ms: how long the loop's thread waited for a processor, in all.
    """

    hold_ms: float
    hold_cpu_ms: float
    busy_ms: float
    stacks: list[tuple[int, str]]
    steps_cpu_ms: dict[str, float]
    peak_bytes: int
    kept_bytes: int
    sent_bytes: int
    answer_bytes: int
    closed: bool
    took_s: float
    neighbour_ms: list[float]
    processor_wait_ms: float

    def __str__(self) -> str:
        """Return the numbers, and where the longest hold was."""
        lines = [
            f"longest hold {self.hold_ms:.1f} ms (processor {self.hold_cpu_ms:.1f} ms), busy {self.busy_ms:.0f} ms",
            *self._long_steps(),
            f"sent {self.sent_bytes:,} B, answered {self.answer_bytes:,} B in {self.took_s:.2f} s"
            + (", connection closed" if self.closed else ""),
            f"peak +{self.peak_bytes:,} B, kept {self.kept_bytes:,} B",
            f"neighbour: {len(self.neighbour_ms)} answers, longest {max(self.neighbour_ms, default=0.0):.1f} ms,"
            f" of which the broker waited for a processor at most {self.processor_wait_ms:.1f} ms",
        ]
        return "\n".join([*lines, *(f"  {count:5} × {stack}" for count, stack in self.stacks)])

    def _long_steps(self) -> list[str]:
        steps = sorted(self.steps_cpu_ms.items(), key=lambda step: -step[1])[:3]
        return [f"longest step of work in slices: processor {ms:.1f} ms, from {place}" for place, ms in steps]


class Connection:
    """One connection to a broker: messages or bytes out, messages or their sizes in."""

    def __init__(self, port: int, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, api_key: int, version: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer."""
        self.socket.sendall(request(api_key, version, message))
        answer = receive_frame(self.socket)
        at = 5 if API_BY_KEY[api_key].has_tagged_response_header(version) else 4
        return read_response(api_key, version, answer, at)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; configs: its settings, `_` for `.`."""
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        answer = self.ask(CREATE_TOPICS, 5, create_topics([new_topic(topic, partitions, settings)]))
        assert [created["error_code"] for created in answer["topics"]] == [0], answer

    def topic_id(self, topic: str) -> bytes:
        """Return the id of a topic."""
        wanted = {"topic_id": str(uuid.UUID(int=0)), "name": topic}
        message = {
            "topics": [wanted],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        return uuid.UUID(self.ask(METADATA, 12, message)["topics"][0]["topic_id"]).bytes

    def end_offset(self, topic: str) -> int:
        """Return where the next record of partition 0 will be."""
        answer = self.ask(LIST_OFFSETS, 5, list_offsets(topic, [-1]))
        return answer["topics"][0]["partitions"][0]["offset"]

    def ask_all(self, frames: Iterable[bytes], together: int = 100) -> None:
        """Send many requests, `together` at a time, and throw their answers away."""
        frames = list(frames)
        for at in range(0, len(frames), together):
            part = frames[at : at + together]
            self.socket.sendall(b"".join(part))
            for _ in part:
                self.skip_answer()

    def skip_answer(self) -> int:
        """Receive an answer and return its size. Raises `ConnectionError` when the connection ends first."""
        size = left = receive_size(self.socket)
        buffer = bytearray(min(size, 1 << 20))
        while left:
            received = self.socket.recv_into(buffer, min(left, len(buffer)))
            if not received:
                raise ConnectionError(f"closed amid an answer: {left} of {size} bytes missing")
            left -= received
        return size


@dataclass(frozen=True, slots=True)
class Exchanged:
    """How much a piece of work sent and was answered, and whether the broker closed its connection."""

    sent_bytes: int = 0
    answer_bytes: int = 0
    closed: bool = False


def exchange(port: int, frames: Sequence[bytes], *, ends: bool = False) -> Exchanged:
    """Send requests on one connection, each when the one before is answered.

    ends: the broker may close the connection instead; otherwise this raises `ConnectionError`.
    """
    answer_bytes = 0
    with Connection(port) as client:
        try:
            for frame in frames:
                client.socket.sendall(frame)
                answer_bytes += client.skip_answer()
        except ConnectionError:
            if not ends:
                raise
            return Exchanged(sum(map(len, frames)), answer_bytes, closed=True)
    return Exchanged(sum(map(len, frames)), answer_bytes)


class WatchedBroker(Broker):
    """A `tidegate serve` process on a watched loop; `watch` sees what a piece of work costs."""

    neighbour: subprocess.Popen | None = None

    def command(self) -> list[str]:
        """Return what starts the broker, without the arguments of `serve`."""
        return [sys.executable, str(HERE / "watched_serve.py")]

    def streams(self) -> dict[str, Any]:
        """Return the ends over which the watch is asked."""
        return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    def start_neighbour(self, topic: str, address: str = "127.0.0.1") -> None:
        """Start a neighbour that produces to `topic` from `address` until `close`; end the one before."""
        self._end_neighbour()
        self.neighbour = subprocess.Popen(
            [sys.executable, str(HERE / "neighbour.py"), str(self.port), topic, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask_neighbour()

    def wait_quiet(self) -> None:
        """Wait until what the broker does after its start is done: it compiles codecs for some seconds."""
        grown = [QUIET_BYTES]
        deadline_s = time.monotonic() + TIMEOUT_S
        before = _in_use(self._ask("reset"))
        while max(grown[-3:]) >= QUIET_BYTES and time.monotonic() < deadline_s:
            time.sleep(QUIET_LOOK_S)
            now = _in_use(self._ask("report"))
            grown.append(abs(now - before))
            before = now

    def watch(self, work: Callable[[], Exchanged], kept_bytes: int, *, is_sampled: bool = False) -> Seen:
        """Do a piece of work and return what was seen meanwhile.

        kept_bytes: how much memory may stay in use; less is waited for, a while. is_sampled: note stacks, which
        lengthens holds.
        """
        before_bytes = _settled(self)
        self._ask_neighbour()
        self._ask("reset and sample" if is_sampled else "reset")
        rss_bytes = _memory(self)["RSS"]
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # the peak begins anew
        began_s = time.monotonic()
        done = work()
        took_s = time.monotonic() - began_s
        neighbour_ms = self._ask_neighbour()
        report = self._ask("report")
        assert report["busy_ms"] > 0, "the loop is not watched"
        peak_bytes = _memory(self)["HWM"] - rss_bytes
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while (
            kept := _in_use(self._ask("report")) - before_bytes
        ) > kept_bytes and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return Seen(
            hold_ms=report["hold_ms"],
            hold_cpu_ms=report["hold_cpu_ms"],
            busy_ms=report["busy_ms"],
            stacks=report["stacks"],
            steps_cpu_ms=report["steps_cpu_ms"],
            peak_bytes=peak_bytes,
            kept_bytes=kept,
            sent_bytes=done.sent_bytes,
            answer_bytes=done.answer_bytes,
            closed=done.closed,
            took_s=took_s,
            neighbour_ms=neighbour_ms,
            processor_wait_ms=report["processor_wait_ms"],
        )

    def close(self) -> None:
        """End the neighbour, then the broker."""
        self._end_neighbour()
        super().close()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()

    def _end_neighbour(self) -> None:
        if self.neighbour is not None:
            self.neighbour.stdin.close()
            self.neighbour.wait(TIMEOUT_S)
            self.neighbour.stdout.close()

    def _ask_neighbour(self) -> list[float]:
        if self.neighbour is None:
            return []
        return _question(self.neighbour, "latencies")

    def _ask(self, question: str) -> dict[str, Any]:
        return _question(self.process, question)


def _question(process: subprocess.Popen, question: str) -> Any:
    process.stdin.write(question + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, f"the process ended with {process.wait(TIMEOUT_S)}"
    return json.loads(line)


def _memory(broker: WatchedBroker) -> dict[str, int]:
    """Return the process's memory in bytes: RSS, and HWM, its most."""
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return {name: int(kib) * 1024 for name, kib in _STATUS.findall(status)}


def _in_use(report: Mapping[str, Any]) -> int:
    """Return the memory that is in use, not what the allocators keep for later."""
    return report["malloc_bytes"] + report["blocks"] * BLOCK_BYTES


def _settled(broker: WatchedBroker) -> int:
    """Return the memory in use as soon as it does not fall any more."""
    now = _in_use(broker._ask("report"))
    while True:
        time.sleep(0.05)
        before, now = now, _in_use(broker._ask("report"))
        if before - now < 10_000:
            return now
