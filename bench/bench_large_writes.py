"""Large batches that are written by a thread or by the loop: throughput, and holds of the loop, both ways.

    python bench/bench_large_writes.py [--batches N]

Per batch of 1 MB the loop checks the CRC and then writes it, or copies it and hands it to one writer thread. Both ways
take turns, first on a quiet disk, then while another process writes and syncs without end.
Rates are medians of the rounds.
"""

import argparse
import asyncio
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from crc32c import crc32c

BATCH_BYTES = 1_000_000
ROUNDS = 7
PRODUCERS = (1, 4)
SETTLE_S = 1.5  # until the other process keeps the disk busy
KEEP_DISK_BUSY = """
import os, sys
data = os.urandom(4 << 20)
while True:
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for at in range(200):
        os.pwrite(fd, data, at << 22)
    os.fdatasync(fd)
    os.close(fd)
"""


class Run:
    """One round: every producer has one batch in flight and sends the next when it is written."""

    def __init__(self, path: Path, batch: memoryview, *, batches: int, off_loop: bool) -> None:
        self.held_s: list[float] = []
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._batch = batch
        self._batches = batches
        self._off_loop = off_loop
        self._begun = self._written = 0
        self._thread = ThreadPoolExecutor(1)

    async def run(self, producers: int) -> float:
        """Write all batches; return the MB a second."""
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        start = time.perf_counter()
        for _ in range(producers):
            self._send()
        await self._done
        took_s = time.perf_counter() - start
        self._thread.shutdown()
        os.close(self._fd)
        return self._batches * BATCH_BYTES / took_s / 1e6

    def _send(self) -> None:
        start = time.perf_counter()
        position = self._begun * BATCH_BYTES
        self._begun += 1
        crc32c(self._batch)
        if self._off_loop:
            self._thread.submit(self._write, bytes(self._batch), position)
        else:
            os.pwrite(self._fd, self._batch, position)
            self._loop.call_soon(self._on_written)
        self.held_s.append(time.perf_counter() - start)

    def _write(self, batch: bytes, position: int) -> None:
        os.pwrite(self._fd, batch, position)
        self._loop.call_soon_threadsafe(self._on_written)

    def _on_written(self) -> None:
        self._written += 1
        if self._begun < self._batches:
            self._send()
        elif self._written == self._batches:
            self._done.set_result(None)


def compare(label: str, path: Path, batches: int) -> None:
    """Print a line per way and number of producers."""
    batch = memoryview(bytearray(os.urandom(BATCH_BYTES)))
    for producers in PRODUCERS:
        rates, held = {False: [], True: []}, {False: [], True: []}
        for _ in range(ROUNDS):
            for off_loop in (False, True):
                run = Run(path, batch, batches=batches, off_loop=off_loop)
                rates[off_loop].append(asyncio.run(run.run(producers)))
                held[off_loop] += run.held_s
        for off_loop, way in ((False, "inline"), (True, "off loop")):
            held_us = sorted(second * 1e6 for second in held[off_loop])
            p99_us = held_us[len(held_us) * 99 // 100]
            print(
                f"{label:11} {producers} producers  {way:9} {median(rates[off_loop]):6.0f} MB/s, loop held "
                f"median {median(held_us):6.0f}  p99 {p99_us:7.0f}  max {held_us[-1]:7.0f} us"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=250, help="batches per round")
    batches = parser.parse_args().batches
    directory = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}")
    try:
        compare("quiet", directory / "log", batches)
        busy = subprocess.Popen([sys.executable, "-c", KEEP_DISK_BUSY, str(directory / "other")])
        try:
            time.sleep(SETTLE_S)
            compare("write-back", directory / "log", batches)
        finally:
            busy.kill()
            busy.wait()
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
