"""`tidegate serve` on an event loop that is watched: how long it did not ask for ready sockets, and what it did then.

    python watched_serve.py serve --port 0 ...

Nothing of the broker is changed but how often it looks after what it keeps (`PERIODS`), and that codecs are compiled
before it starts. The event loop notes when it goes to wait for what is ready, and its poller when it asks the kernel
for ready sockets and gets them. The time between an answer and the next question is a *hold*: meanwhile no other
client is served. A hold counts the loop's thread running or blocked (a sync, SQLite, another thread with the
interpreter's lock), not waiting for a processor that others use: the kernel tells that apart (`schedstat`), so a busy
machine does not lengthen it. If the thread never blocked (`ru_nvcsw`), a hold is its processor time: a virtual machine
also waits for its host. Stacks are sampled only where that is asked for: the loop waits for the thread that samples it.

Work in slices is run step by step, as ever. Of the *steps*, what lies between two yields, the longest of each place is
noted, by its processor time. The kernel's work for other processes is charged to the thread that it interrupts, so that
a long step may be anywhere once; the broker's own is in the same place each time.

A line on standard input is a question, a line of JSON on standard output its answer: `reset`, `reset and sample`,
`report`.
"""

import ctypes
import gc
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Generator
from types import CodeType, FrameType, GeneratorType
from typing import Any

from tidegate.broker.handlers import fetch
from tidegate.cli.main import main
from tidegate.server import periodic_work
from tidegate.server.connection.poller import EpollPoller
from tidegate.server.requests import later_work, slices
from tidegate.server.requests.slices import UNFINISHED
from tidegate.storage import housekeeping
from tidegate.wire import compile_ahead
from tidegate.wire.apis import spoken_pairs
from tidegate.wire.codecs import SLICED_REQUEST_READERS, SLICED_RESPONSE_WRITERS

PERIODS = {
    fetch: "FORGET_DELETED_EVERY_S",
    housekeeping: "HOUSEKEEPING_EVERY_S",
    periodic_work: "EXPIRE_SENSORS_EVERY_S",
}
PERIOD_S = 2.0
"""So often all that has a period of half a minute or more is done, so that a test sees it."""

SAMPLE_EVERY_S = 0.002
SAMPLE_FROM_NS = 8_000_000
"""Holds shorter than this are not looked into: the bar is 20 ms."""
STACK_DEPTH = 8
SAMPLED = "reset and sample"
LONG_STEP_NS = 1_000_000
"""Shorter steps are not noted: the bar is 5 ms."""


class ProcessorWait:
    """How long the thread that makes this one has waited for a processor."""

    def __init__(self) -> None:
        self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def ns(self) -> int:
        """Return it."""
        return int(os.pread(self._schedstat, 100, 0).split()[1])


class HoldWatch:
    """The longest hold since the last `reset`, with the stacks that were seen in it.

    is_sampled: whether stacks are noted. stalled_ns: how long the loop waited for the thread that samples it, which
    waited for a processor.
    """

    def __init__(self) -> None:
        self.loop_thread = threading.get_ident()
        self.is_sampled = False
        self.stalled_ns = self._stalled_before_ns = 0
        self._processor_wait = ProcessorWait()
        self.began_ns = 0
        self.samples: list[str] = []
        self._waited_ns = self._cpu_ns = self._blocked = 0
        self.reset()

    def reset(self) -> None:
        """Forget the holds so far."""
        self.longest_ns = self.longest_cpu_ns = self.total_ns = self.processor_wait_ns = 0
        self.longest_samples: list[str] = []

    def begin(self) -> None:
        """Note that the loop goes to work."""
        self._waited_ns, self._cpu_ns = self._processor_wait.ns(), time.thread_time_ns()
        self._stalled_before_ns = self.stalled_ns
        self._blocked = _times_blocked()
        self.began_ns = time.monotonic_ns()

    def end(self) -> None:
        """Note that the loop asks for ready sockets."""
        if not self.began_ns:
            return
        wall_ns = time.monotonic_ns() - self.began_ns
        self.began_ns = 0
        waited_ns = self._processor_wait.ns() - self._waited_ns + self.stalled_ns - self._stalled_before_ns
        cpu_ns = time.thread_time_ns() - self._cpu_ns
        hold_ns = cpu_ns if _times_blocked() == self._blocked else max(wall_ns - waited_ns, cpu_ns)
        self.processor_wait_ns += waited_ns
        self.total_ns += hold_ns
        if hold_ns > self.longest_ns:
            self.longest_ns, self.longest_cpu_ns = hold_ns, cpu_ns
            self.longest_samples = self.samples
        if self.samples:
            self.samples = []

    def sample(self) -> None:
        """Note where the loop's thread is, if it has been busy for a while."""
        began_ns = self.began_ns
        if began_ns and time.monotonic_ns() - began_ns > SAMPLE_FROM_NS and len(self.samples) < 2000:
            self.samples.append(_stack(sys._current_frames()[self.loop_thread]))

    def report(self) -> dict[str, object]:
        """Return the longest hold, and the sums of all."""
        samples = self.longest_samples
        stacks = sorted(set(samples), key=samples.count, reverse=True)
        return {
            "hold_ms": self.longest_ns / 1e6,
            "hold_cpu_ms": self.longest_cpu_ns / 1e6,
            "busy_ms": self.total_ns / 1e6,
            "processor_wait_ms": self.processor_wait_ns / 1e6,
            "stacks": [[samples.count(stack), stack] for stack in stacks[:4]],
        }

    def wait_hold_end(self) -> None:
        """Wait until a hold that goes on has ended: its answer may have left before."""
        holding_ns = self.began_ns
        while holding_ns and self.began_ns == holding_ns:
            time.sleep(0.001)


def _times_blocked() -> int:
    """Return how often the calling thread has blocked."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class StepWatch:
    """The longest steps of work in slices since the last `reset`, by place."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the steps so far."""
        self._longest_ns: dict[str, int] = {}

    def advance(self, work: Generator[Any, None, Any], until_ns: int, monotonic_ns: Callable[[], int]) -> Any:
        """Do what `tidegate.server.requests.slices.advance` does, with a watch on each step."""
        began_at, began_ns = _place(work), time.thread_time_ns()
        try:
            while True:
                wait = next(work)
                ended_at, ended_ns = _place(work), time.thread_time_ns()
                if ended_ns - began_ns > LONG_STEP_NS:
                    self._note(began_at, ended_ns - began_ns, _named(*ended_at))
                if wait is not None:
                    return wait
                if monotonic_ns() >= until_ns:
                    return UNFINISHED
                began_at, began_ns = ended_at, ended_ns
        except BaseException as error:
            self._note(began_at, time.thread_time_ns() - began_ns, "its end")
            if isinstance(error, StopIteration):
                return error.value
            raise

    def _note(self, began_at: tuple[CodeType, int], took_ns: int, ended_at: str) -> None:
        if took_ns > LONG_STEP_NS:
            place = f"{_named(*began_at)} to {ended_at}"
            self._longest_ns[place] = max(took_ns, self._longest_ns.get(place, 0))

    def report(self) -> dict[str, object]:
        """Return the processor time of the longest steps, by where they began and ended."""
        return {"steps_cpu_ms": {place: ns / 1e6 for place, ns in self._longest_ns.items()}}


def _place(work: Generator[Any, None, Any]) -> tuple[CodeType, int]:
    """Return where a generator has yielded, or begins: in the innermost one that it has handed over to.

    As its code and the place of the instruction: which line that is takes longer, and most steps are short.
    """
    while type(inner := work.gi_yieldfrom) is GeneratorType:
        work = inner
    return work.gi_code, -1 if work.gi_frame is None else work.gi_frame.f_lasti


def _named(code: CodeType, instruction: int) -> str:
    lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end and line is not None)
    return f"{os.path.basename(code.co_filename)}:{next(lines, code.co_firstlineno)}:{code.co_name}"


def watch_poller(watch: HoldWatch) -> None:
    """Note when the loop goes to wait, and when the poller asks for ready sockets and gets them."""
    wait, ready_sockets = EpollPoller.wait, EpollPoller._ready_sockets

    def watched_wait(poller: EpollPoller, timeout_s: float | None) -> None:
        watch.end()
        watch.begin()  # sockets that the last turns have left are served before the kernel is asked
        wait(poller, timeout_s)

    def watched(poller: EpollPoller, timeout_s: float | None) -> list[tuple[int, int]]:
        watch.end()
        ready = ready_sockets(poller, timeout_s)
        watch.begin()
        return ready

    EpollPoller.wait, EpollPoller._ready_sockets = watched_wait, watched


def _stack(frame: FrameType | None) -> str:
    names = []
    while frame is not None and len(names) < STACK_DEPTH:
        code = frame.f_code
        names.append(_named(code, frame.f_lasti))
        frame = frame.f_back
    return " < ".join(names)


MALLINFO2 = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _MallInfo


def _report(watch: HoldWatch, steps: StepWatch) -> dict[str, object]:
    watch.wait_hold_end()
    report = watch.report() | steps.report()
    memory = _libc.mallinfo2()  # after the rest: who wants memory meanwhile has to wait
    report["malloc_bytes"] = memory.uordblks + memory.hblkhd
    report["blocks"] = sys.getallocatedblocks()
    return report


def _answer_questions(watch: HoldWatch, steps: StepWatch) -> None:
    for line in sys.stdin:
        if line.startswith("reset"):
            gc.collect()  # else what one piece of work left hides what the next takes
            _libc.malloc_trim(0)
            watch.wait_hold_end()  # it may have waited for the collection
            watch.reset()
            steps.reset()
            watch.is_sampled = line.strip() == SAMPLED
        print(json.dumps(_report(watch, steps)), flush=True)


def _compile_all() -> None:
    """Compile every codec before anything is measured: each takes memory once, for good, at its first use."""
    pairs = list(spoken_pairs())
    compile_ahead(pairs)
    for api_key, version in pairs:
        SLICED_REQUEST_READERS[api_key, version]
        SLICED_RESPONSE_WRITERS[api_key, version]


def _sample_for_ever(watch: HoldWatch) -> None:
    wait = ProcessorWait()
    while True:
        time.sleep(SAMPLE_EVERY_S)
        while not watch.is_sampled:
            time.sleep(10 * SAMPLE_EVERY_S)
        before_ns = wait.ns()
        watch.sample()
        watch.stalled_ns += wait.ns() - before_ns


if __name__ == "__main__":
    for module, name in PERIODS.items():
        assert hasattr(module, name), f"{module.__name__} has no {name}: where is its period?"
        setattr(module, name, PERIOD_S)
    _compile_all()
    hold_watch = HoldWatch()
    watch_poller(hold_watch)
    step_watch = StepWatch()
    for module in (later_work, slices):
        assert hasattr(module, "advance"), f"{module.__name__} has no advance: where does it run slices?"
        module.advance = step_watch.advance
    threading.Thread(target=_answer_questions, args=(hold_watch, step_watch), daemon=True).start()
    threading.Thread(target=_sample_for_ever, args=(hold_watch,), daemon=True).start()
    sys.exit(main())
