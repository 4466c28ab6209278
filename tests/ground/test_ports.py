"""Ports for servers of tests that run at the same time."""

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from bench import ports
from bench.ports import free_port

from tidegate.gateway.processes import METRICS_STEP

_FIRST_UNUSED = 32_000 + os.getpid() % 70 * 10
UNUSED = range(_FIRST_UNUSED, _FIRST_UNUSED + 10)
"""Ports that neither other tests nor the system use: between those of servers and those of clients."""
IN_ANOTHER_PROCESS = """\
import sys
from bench import ports
ports._FIRST_PORT, ports._PORTS = map(int, sys.argv[1:3])
print(*(ports.free_port() for _ in range(int(sys.argv[3]))))
"""


def in_another_process(first: int, among: int, count: int) -> list[int]:
    """Return ports that another process has reserved before it ended."""
    command = (sys.executable, "-c", IN_ANOTHER_PROCESS, *map(str, (first, among, count)))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return list(map(int, done.stdout.split()))


def test_no_port_is_given_twice(monkeypatch):
    """Neither in a process, nor to another one that runs at the same time; a process that has ended has none."""
    monkeypatch.setattr(ports, "_FIRST_PORT", UNUSED[0])
    monkeypatch.setattr(ports, "_PORTS", len(UNUSED))
    own = [free_port() for _ in range(5)]
    assert len(set(own)) == 5
    monkeypatch.setattr(ports, "_TRIES", 1000)
    for _ in range(2):
        assert {*own, *in_another_process(UNUSED[0], len(UNUSED), 5)} == set(UNUSED)
    for _ in range(5):
        free_port()
    with pytest.raises(RuntimeError, match=f"no port from {UNUSED[0]} to {UNUSED[-1]} is free"):
        free_port()


def test_many_processes_get_different_ports():
    """They ask at the same time, and each has its ports until all have asked."""
    command = (sys.executable, "-c", IN_ANOTHER_PROCESS + "input()", "20000", "12000", "200")
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    try:
        with ThreadPoolExecutor() as pool:
            given = [line.split() for line in pool.map(lambda process: process.stdout.readline(), running)]
    finally:
        for process in running:
            process.communicate("\n", timeout=60)
    assert [len(each) for each in given] == [200, 200, 200]
    assert len({port for each in given for port in each}) == 600


def test_ports_of_several_processes_are_free():
    """Those behind the port, and those of the metrics of each process; other calls get none of them."""
    first = free_port(2, processes=3)
    wanted = [first + process * METRICS_STEP + number for process in range(3) for number in range(3)]
    assert list(itertools.islice(reversed(ports._reserved), len(wanted))) == wanted[::-1]
    assert not any(map(ports._reserve, wanted))


def test_the_oldest_ports_are_given_again(monkeypatch):
    """A process keeps only the newest ones."""
    monkeypatch.setattr(ports, "_MOST_RESERVED", len(ports._reserved) + 2)
    oldest = next(iter(ports._reserved)) if ports._reserved else None
    taken = [free_port() for _ in range(3)]
    assert len(ports._reserved) == ports._MOST_RESERVED
    assert (taken[0] if oldest is None else oldest) not in ports._reserved
