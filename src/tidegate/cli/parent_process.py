"""The parent of a gateway with several processes (`--processes`): starts them, passes signals on, and waits for them.

The processes are forked one after the other, so that the kernel knows their sockets in this order (`accept_queues`). A
process that ends by itself is started again; before the gateway serves, the others end instead. The standard input of
each process is a pipe whose other end only the parent has, so all processes end when the parent is killed.

    outcome = Parent(args, log).run()    # in each process its `Place`, in the parent the exit code
"""

import argparse
import json
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from tidegate import __version__
from tidegate.cli.arguments import EXIT_ERROR
from tidegate.cli.process import fresh_port_file, no_input, print_message, write_ports
from tidegate.clock import SystemClock
from tidegate.gateway.connection_counts import ConnectionCounts
from tidegate.gateway.processes import Process, SharedReports
from tidegate.gateway.shared_states import SharedBuckets, SharedRates

__all__ = ["RESTART_S", "STOP_S", "Parent", "Place"]

RESTART_S = 5.0
"""Shortest time between two starts of a process."""
STOP_S = 10.0
"""Time after which a process that was asked to stop is killed."""
_STDIN = 0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_INPUT_BYTES = 65_536

Announce = Callable[[Iterable[int], Iterable[str], Iterable[str]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a process among those of its gateway.

    clock: the clock of all processes. A process that starts after a step of the wall clock has the engine time of the
    others. announce: sends ports, lines of brokers and lines of metrics to the parent when the process serves; None:
    there is no parent.
    """

    process: Process
    clock: SystemClock = field(default_factory=SystemClock)
    announce: Announce | None = None


@dataclass(slots=True)
class _Child:
    """A running process. ready: the pipe through which it announces itself."""

    number: int
    pid: int
    ready: int
    started_s: float
    announced: bytearray = field(default_factory=bytearray)
    serves: bool = False
    reload: bool = False


class Parent:
    """The parent of a gateway's processes. args: those of the command; in a process, `run` adapts them to the process.

    samples: the number of samples in a rate of connections.
    """

    def __init__(self, args: argparse.Namespace, log: logging.Logger, *, samples: int) -> None:
        self._args = args
        self._connections = ConnectionCounts(args.processes)
        self._process = Process(
            count=args.processes,
            gateway=uuid4().hex,
            reports=SharedReports(args.processes),
            connections=self._connections,
            buckets=SharedBuckets(),
            rates=SharedRates(samples),
        )
        self._clock = SystemClock()
        self._reloads = args.config is not None or args.quotas is not None
        self._children: dict[int, _Child] = {}
        self._due_s = dict.fromkeys(range(1, args.processes + 1), 0.0)  # process → when to start it
        self._serves = False
        self._kill_s: float | None = None  # set while the processes are stopping
        self._code = 0
        self._log = log
        self._poll = select.poll()
        self._alive = os.pipe()
        self._handlers: dict[signal.Signals, Any] = {}  # the handlers of signals before `run`

    def run(self) -> Place | int:
        """Start the processes, and wait for their end. Return the exit code; in a process, return its place.

        Raises `ConfigError`.
        """
        port_file = fresh_port_file(self._args)
        if self._args.stop_on_eof:
            _check_input()
            self._poll.register(_STDIN, select.POLLIN)
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        woken, wakes = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        for number, handler in self._handlers.items():
            if number != signal.SIGHUP or handler != signal.SIG_IGN or self._reloads:
                signal.signal(number, _ignore)
        self._poll.register(woken, select.POLLIN)
        try:
            while self._children or self._due_s:
                place = self._start_next()
                if place is not None:
                    return place
                self._wait(woken)
                self._reap()
                self._note_serving(port_file)
            return self._code
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            for fd in (woken, wakes, *self._alive):
                os.close(fd)

    # --- start ------------------------------------------------------------------------------------------------------

    def _start_next(self) -> Place | None:
        """Start a process that is due, unless another one is starting. In the new process, return its place."""
        if not all(child.serves for child in self._children.values()):
            return None
        due = [number for number, due_s in self._due_s.items() if due_s <= time.monotonic()]
        if not due:
            return None
        number = due[0]
        ready, announces = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
        except OSError as error:
            self._log.error(
                "cannot start process %d: %s; next try in %.0f s", number, error.strerror, RESTART_S
            )
            self._due_s[number] = time.monotonic() + RESTART_S
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(ready)
            os.close(announces)
            return None
        if pid == 0:
            os.close(ready)
            self._become_process(number)
            process = replace(self._process, number=number, has_others=bool(self._children))
            return Place(process=process, clock=self._clock, announce=_announcing(announces))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(announces)
        del self._due_s[number]
        self._children[number] = _Child(number, pid, ready, time.monotonic())
        self._poll.register(ready, select.POLLIN)
        return None

    def _become_process(self, number: int) -> None:
        """Release what belongs to the parent, in a new process. The end of `run` restores the handlers of signals."""
        if self._reloads:
            self._handlers[signal.SIGHUP] = signal.SIG_IGN  # until the process can read its files again
        os.setpgid(0, 0)  # the parent passes on what a terminal sends
        os.dup2(self._alive[0], _STDIN)
        for child in self._children.values():
            os.close(child.ready)
        self._args.process = number
        self._args.port_file = None
        self._args.stop_on_eof = True

    # --- events -----------------------------------------------------------------------------------------------------

    def _wait(self, woken: int) -> None:
        """Wait for a signal, an announcement or the next time that something is due."""
        for fd, _ in self._poll.poll(self._wait_ms()):
            if fd == woken:
                for number in os.read(woken, _INPUT_BYTES):
                    self._on_signal(signal.Signals(number))
            elif fd == _STDIN:
                if not os.read(_STDIN, _INPUT_BYTES):
                    self._poll.unregister(_STDIN)
                    self._stop("standard input was closed")
            else:
                self._on_announced(fd)
        if self._kill_s is not None and time.monotonic() >= self._kill_s:
            for child in self._children.values():
                self._log.error("killed process %d: it has not stopped in %.0f s", child.number, STOP_S)
                os.kill(child.pid, signal.SIGKILL)
            self._kill_s, self._code = time.monotonic() + STOP_S, EXIT_ERROR

    def _wait_ms(self) -> float | None:
        times_s = [] if self._kill_s is None else [self._kill_s]
        if all(child.serves for child in self._children.values()):
            times_s += self._due_s.values()
        return max(min(times_s) - time.monotonic(), 0.0) * 1000 + 1 if times_s else None

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP and self._reloads:
            for child in self._children.values():
                child.reload = True
                self._pass_on_reload(child)
        elif number != signal.SIGCHLD:
            self._stop(f"received {number.name}")

    def _pass_on_reload(self, child: _Child) -> None:
        """Tell a process to read its files again. A process that is starting may have read them before the change."""
        if child.reload and child.serves:
            child.reload = False
            os.kill(child.pid, signal.SIGHUP)

    def _on_announced(self, fd: int) -> None:
        child = next(child for child in self._children.values() if child.ready == fd)
        part = os.read(fd, _INPUT_BYTES)
        child.announced += part
        if part:
            return
        self._poll.unregister(fd)  # the process has closed the pipe: it serves, or ends
        if child.announced:
            child.serves = True
            self._pass_on_reload(child)
            if self._serves:
                self._log.info("process %d serves", child.number)

    def _note_serving(self, port_file: Path | None) -> None:
        """Print the addresses and write the port file, once all processes serve."""
        is_complete = len(self._children) == self._args.processes and not self._due_s
        if self._serves or not is_complete or not all(child.serves for child in self._children.values()):
            return
        self._serves = True
        announced = [json.loads(self._children[number].announced) for number in sorted(self._children)]
        if port_file is not None:
            write_ports(port_file, announced[0]["ports"])
        for line in announced[0]["brokers"]:
            print_message(self._args, line)
        for number, each in enumerate(announced, 1):
            for line in each["metrics"]:
                print_message(self._args, f"{line} (process {number})")
        print_message(
            self._args, f"tidegate {__version__} gateway: {len(announced)} processes serve; Ctrl-C stops them"
        )

    # --- end --------------------------------------------------------------------------------------------------------

    def _stop(self, reason: str) -> None:
        """Tell the processes to end, and start no more."""
        if self._kill_s is not None:
            return
        self._log.info("stopping: %s", reason)
        self._kill_s = time.monotonic() + STOP_S
        self._due_s.clear()
        for child in self._children.values():
            os.kill(child.pid, signal.SIGTERM)

    def _reap(self) -> None:
        """Collect ended processes; as the first process of a container, also the orphans of a killed process."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                child = next((child for child in self._children.values() if child.pid == pid), None)
                if child is not None:
                    del self._children[child.number]
                    self._close_ready(child)
                    self._connections.clear(child.number)
                    self._on_ended(child, os.waitstatus_to_exitcode(status))

    def _close_ready(self, child: _Child) -> None:
        with suppress(KeyError):
            self._poll.unregister(child.ready)
        os.close(child.ready)

    def _on_ended(self, child: _Child, code: int) -> None:
        if self._kill_s is not None:
            if code not in (0, -signal.SIGTERM, -signal.SIGKILL):
                self._log.error("process %d %s while it stopped", child.number, _how(code))
                self._code = EXIT_ERROR
        elif self._serves:
            self._due_s[child.number] = child.started_s + RESTART_S
            self._log.error("process %d (pid %d) %s: starting it again", child.number, child.pid, _how(code))
        else:
            self._code = code if code > 0 else EXIT_ERROR
            if code != EXIT_ERROR:  # the process has not printed an error
                self._log.error(
                    "process %d (pid %d) %s before it served", child.number, child.pid, _how(code)
                )
            self._stop(f"process {child.number} cannot serve")


def _announcing(fd: int) -> Announce:
    def announce(ports: Iterable[int], brokers: Iterable[str], metrics: Iterable[str]) -> None:
        text = json.dumps({"ports": [*ports], "brokers": [*brokers], "metrics": [*metrics]})
        with open(fd, "wb") as pipe:
            pipe.write(text.encode())

    return announce


def _how(code: int) -> str:
    """Return a text about how a process has ended."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _check_input() -> None:
    """Raise `ConfigError` if standard input is a file or is closed."""
    try:
        with select.epoll() as poll:
            poll.register(_STDIN, select.EPOLLIN)
    except OSError as error:
        raise no_input(error) from error


def _ignore(number: int, frame: object) -> None:
    """Ignore a signal: its number is read from the wakeup descriptor."""
