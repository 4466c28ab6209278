"""Time `tidegate import`: request logs of a real Kafka, repeated, become a usage record.

The sample's lines are written anew with the time moved on at each repetition, so that no two are alike and the rows
spread over hours as those of a busy broker do. MB are of uncompressed log.

python bench/bench_import.py [--mb N] [--processes N]; exit 1: plain files are imported at less than 100 MB/s
"""

import argparse
import gzip
import json
import re
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from tidegate.kafka_log.importing import import_logs
from tidegate.kafka_log.line import LineReader
from tidegate.kafka_log.log_files import Source

SAMPLE = Path(__file__).parents[1] / "tests" / "vectors" / "request-log" / "throttled-150s.micros.log.gz"
SPAN_S = 151  # of the sample
FILES = 4
UTC = ZoneInfo("UTC")
LEAST_MB_S = 100
DECODED = 20_000
_STAMP = re.compile(rb"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", re.MULTILINE)


def write_logs(directory: Path, mb: int) -> list[Path]:
    """Write files of the sample's lines, `mb` MB in all; return them."""
    lines = gzip.decompress(SAMPLE.read_bytes())
    times = -(-mb * 1_000_000 // (FILES * len(lines)))
    paths = []
    for number in range(FILES):
        path = directory / f"kafka-request.log.{number}"
        with path.open("wb") as file:
            for repetition in range(times):
                file.write(_moved(lines, (number * times + repetition) * SPAN_S))
        paths.append(path)
    return paths


def _moved(lines: bytes, seconds: int) -> bytes:
    stamps: dict[bytes, bytes] = {}

    def move(match: "re.Match[bytes]") -> bytes:
        stamp = match[1]
        if stamp not in stamps:
            moved = datetime.fromisoformat(stamp.decode()) + timedelta(seconds=seconds)
            stamps[stamp] = b"[" + moved.isoformat(" ").encode()
        return stamps[stamp]

    return _STAMP.sub(move, lines)


def timed_import(paths: list[Path], out: Path, processes: int) -> tuple[float, int]:
    """Return seconds and requests."""
    begun = time.perf_counter()
    summary = import_logs([Source(1, path) for path in paths], out, zone=UTC, processes=processes)
    assert summary.bad == 0
    return time.perf_counter() - begun, summary.requests


def decode_us(paths: list[Path]) -> tuple[float, float]:
    """Return the microseconds in which one line is read as it is here, and by the standard library's `json`."""
    with paths[0].open("rb") as file:
        lines = [line for line, _ in zip(file, range(DECODED), strict=False)]
    read = LineReader(UTC).read
    begun = time.process_time()
    for line in lines:
        read(line)
    ours = time.process_time()
    for line in lines:
        json.loads(line[line.index(b"{") : line.rindex(b"}") + 1])
    return (ours - begun) / len(lines) * 1e6, (time.process_time() - ours) / len(lines) * 1e6


def main() -> int:
    """Print what it takes, plain and packed, in several processes and in one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-import-") as name:
        directory = Path(name)
        paths = write_logs(directory, args.mb)
        mb = sum(path.stat().st_size for path in paths) / 1e6
        packed = []
        for path in paths:
            packed.append(path.with_name(f"{path.name}.gz"))
            packed[-1].write_bytes(gzip.compress(path.read_bytes(), 1))
        good = True
        for what, files, processes in (
            ("plain", paths, args.processes),
            ("gzip", packed, args.processes),
            ("plain, one process", paths[:1], 1),
        ):
            seconds, requests = timed_import(files, directory / f"out-{what}", processes)
            size = mb * len(files) / len(paths)
            print(
                f"{what:20} {size:7.0f} MB {requests:9,} requests {seconds:6.1f} s {size / seconds:6.0f} MB/s",
                flush=True,
            )
            if what == "plain" and size / seconds < LEAST_MB_S:
                good = False
        ours, standard = decode_us(paths)
        print(f"one line read: {ours:.1f} us; by the standard library's json: {standard:.1f} us")
    if not good:
        print(f"plain: less than {LEAST_MB_S} MB/s", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
