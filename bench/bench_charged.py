"""Share of the broker's work that is charged as request time: a running broker at saturation, raw clients.

What the usage record has of each moment, handler and network time of all requests, those of exempt ones too, is
compared with the processor time that the thread of the broker's event loop took in that moment. Charged time is taken
from a clock that runs on while the thread waits for a processor; how much it waited is printed beside it: on a busy
machine the charged share is too high by up to that much. With `--processor-time` the broker takes its times from the
thread's own clock instead, which stands still meanwhile and costs more to read.

python bench/bench_charged.py [--rounds N] [--seconds S] [--processor-time]; exit 1: a share is outside 90 to 110 %
"""

import argparse
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow.compute as pc
import pyarrow.parquet as pq
from bench.ladder.brokers import TidegateBench, machine
from bench.ladder.costs import load
from bench.ladder.rungs import make_anew, produce_frame, set_up

from tidegate.usage.readers import complete_files

FRAMES = {"produce100": "small", "produce16k": "kilo", "fetch16k": "", "metadata": ""}
"""The requests that are sent, and the topic that is made anew before, so that memory used before does not matter."""
LEAST, MOST = 0.9, 1.1
PROCESSOR_TIME = (
    "import sys, time, tidegate.clock as clock; clock.SystemClock.monotonic_ns = staticmethod(time.thread_time_ns);"
    "from tidegate.cli.main import main; sys.exit(main(sys.argv[1:]))"
)
COLUMNS = ["kind", "ts_ms", "handler_ns", "network_ns"]


class ProcessorTimeBench(TidegateBench):
    """`tidegate serve` whose clock is the processor time of its loop's thread."""

    def _command(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._command()
        return [sys.executable, "-c", PROCESSOR_TIME, *command[command.index("serve") :]], environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A time of the broker under load, and what its loop's thread did then; engine time is wall time here."""

    frame: str
    begin_ms: float
    end_ms: float
    cpu_ns: int
    waited_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The time that the requests of a moment were charged, us each, as a share of the processor time."""

    cpu_us: float
    handler_us: float
    network_us: float
    waited: float

    @property
    def charged(self) -> float:
        """Return the charged time to processor time."""
        return (self.handler_us + self.network_us) / self.cpu_us


def main() -> int:
    """Measure, print the table and judge it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--processor-time", action="store_true")
    args = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        broker_type = ProcessorTimeBench if args.processor_time else TidegateBench
        broker = broker_type(name="tidegate", directory=directory).start()
        try:
            set_up(broker, directory)
            _produce_once(broker.port, produce_frame("fetch16k", 16_000))
            moments = [
                _moment(broker, directory, frame, args.seconds)
                for _ in range(args.rounds)
                for frame in FRAMES
            ]
        finally:
            broker.stop()
        shares = dict(_shares(moments, directory / "data" / "usage"))
    print(
        f"{'us a request':12}{'CPU':>8}{'handler':>9}{'network':>9}{'charged':>9}{'range':>15}{'waited':>8}"
    )
    outside = False
    for frame in FRAMES:
        found = [shares[moment] for moment in moments if moment.frame == frame]
        charged = statistics.median(share.charged for share in found)
        outside |= not LEAST <= charged <= MOST
        lowest, highest = min(share.charged for share in found), max(share.charged for share in found)
        cells = (
            statistics.median(getattr(share, name) for share in found)
            for name in ("cpu_us", "handler_us", "network_us")
        )
        texts = "".join(f"{cell:9.2f}" for cell in cells)[1:]
        waited = statistics.median(share.waited for share in found)
        print(f"{frame:12}{texts}{charged:9.1%}{f'{lowest:.1%}–{highest:.1%}':>15}{waited:8.1%}")
    if outside:
        print(f"charged is outside {LEAST:.0%} to {MOST:.0%} of the processor time", file=sys.stderr)
    return int(outside)


def _moment(broker: TidegateBench, directory: Path, frame: str, seconds: float) -> Moment:
    """Load the broker with one kind of request and watch its loop for a while."""
    if FRAMES[frame]:
        make_anew(broker, FRAMES[frame])
    with load(broker, directory, frame):
        assert broker.process is not None
        pid = broker.process.pid
        begin_ms, (cpu_ns, waited_ns) = time.time() * 1000, _loop_times_ns(pid)
        time.sleep(seconds)
        end_ms, (end_cpu_ns, end_waited_ns) = time.time() * 1000, _loop_times_ns(pid)
    return Moment(
        frame=frame,
        begin_ms=begin_ms,
        end_ms=end_ms,
        cpu_ns=end_cpu_ns - cpu_ns,
        waited_ns=end_waited_ns - waited_ns,
    )


def _loop_times_ns(pid: int) -> tuple[int, int]:
    """Return how long the process's first thread, which is the loop's, has run and waited for a processor."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran), int(waited)


def _shares(moments: list[Moment], usage: Path) -> Iterator[tuple[Moment, Share]]:
    """Yield each moment with what the usage record has of it."""
    with complete_files(usage) as files:
        tables = [pq.read_table(file, columns=COLUMNS, partitioning=None) for file in files]
    for moment in moments:
        handler_ns = network_ns = requests = 0
        for table in tables:
            at = pc.and_(
                pc.greater_equal(table["ts_ms"], moment.begin_ms), pc.less(table["ts_ms"], moment.end_ms)
            )
            rows = table.filter(at)
            handler_ns += pc.sum(rows["handler_ns"]).as_py() or 0
            network_ns += pc.sum(rows["network_ns"]).as_py() or 0
            requests += pc.sum(pc.equal(rows["kind"], "request")).as_py() or 0
        yield (
            moment,
            Share(
                cpu_us=moment.cpu_ns / requests / 1000,
                handler_us=handler_ns / requests / 1000,
                network_us=network_ns / requests / 1000,
                waited=moment.waited_ns / moment.cpu_ns,
            ),
        )


def _produce_once(port: int, frame: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(frame)
        size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
        assert len(sock.recv(size, socket.MSG_WAITALL)) == size


if __name__ == "__main__":
    sys.exit(main())
