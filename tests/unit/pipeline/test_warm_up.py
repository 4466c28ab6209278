"""Compiling the kernel ahead."""

import threading
from functools import partial
from random import Random

import pyarrow as pa
import pytest
from tests.replaying.files import write_events
from tests.replaying.kernel import replay_events
from tests.replaying.logs import START_MS, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.cli import main as cli
from tidegate.pipeline import warm_up
from tidegate.pipeline.read.control_events import control_events
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.read.timeline import empty_timeline, timelines
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.kernel import compiled
from tidegate.pipeline.replay.kernel.beyond_kafka import replay_kernel_beyond_kafka, run_kernel_beyond_kafka
from tidegate.pipeline.replay.kernel.closed_loop import run_kernel, take_in_kernel
from tidegate.pipeline.replay.kernel.compiled import cache_directory, own_form
from tidegate.pipeline.replay.kernel.open_loop import KERNEL_MODULES, replay_kernel
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.rollup.kernel import usage_kernel
from tidegate.pipeline.rollup.parts import compile_usage_kernel
from tidegate.pipeline.schemas import CLIENT
from tidegate.pipeline.warm_up import (
    CLOSED,
    CLOSED_SMOOTH,
    OPEN,
    OPEN_SMOOTH,
    USAGE,
    compile_later,
    compile_replay_kernel,
    kernel_at_hand,
    kernel_in_the_making,
    load_usage_kernel,
    smooth_mode_at_hand,
)
from tidegate.pipeline.watch import node as watch_node
from tidegate.pipeline.watch.node import NodeWatch
from tidegate.quota import QuotaRecord
from tidegate.usage.arrow import arrow_schema

_SMOOTH = QuotaRecord(entity=(), key="tidegate.quota.smooth", value=1.0)
_WHAT = {
    OPEN: "the open-loop replay",
    CLOSED: "the closed-loop replay",
    OPEN_SMOOTH: "the open-loop replay with smooth mode",
    CLOSED_SMOOTH: "the closed-loop replay with smooth mode",
    USAGE: "the aggregation of usage",
}
PLANS = {
    name: Plan(name="p", records=records, is_closed=name in (CLOSED, CLOSED_SMOOTH))
    for name, records in ((OPEN, ()), (CLOSED, ()), (OPEN_SMOOTH, (_SMOOTH,)), (CLOSED_SMOOTH, (_SMOOTH,)))
}
KERNELS = {**{loop: partial(compile_replay_kernel, loop) for loop in PLANS}, USAGE: compile_usage_kernel}


def test_one_form_of_the_kernel_serves_all():
    """What is compiled ahead is what a replay needs: types that differ would mean compiling twice."""
    node = RecordingNode()
    node.start(0)
    node.produce("alice", "c1", 10, 1)
    for loop, plan in PLANS.items():
        compile_replay_kernel(loop)
        replay_events(node.events, plan)
    kernels = (replay_kernel(), run_kernel(), replay_kernel_beyond_kafka(), run_kernel_beyond_kafka())
    for kernel in (*kernels, take_in_kernel()):
        assert len(kernel.signatures) == 1


def test_one_form_of_the_kernel_serves_all_usage(tmp_path):
    """Whatever the rows: types that differ would mean compiling twice."""
    compile_usage_kernel()
    node = RecordingNode()
    random_traffic(node, Random(1), events=100, now_ms=START_MS)
    write_events(tmp_path, node.events)
    with open_usage(tmp_path) as files:
        for by in (CLIENT, ("listener",)):
            jobs_here(files).usage(out=None, top=1, by=by)
    for kernel in usage_kernel():
        assert len(kernel.signatures) == 1


@pytest.mark.parametrize("name", KERNELS)
def test_a_compiled_kernel_is_not_compiled_again(monkeypatch, tmp_path, name):
    """Where the cache holds it, no process is started."""
    KERNELS[name]()
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-such-program"))
    with kernel_in_the_making([PLANS[name]] if name in PLANS else [], with_usage=name == USAGE):
        pass


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_compiled_kernel_of_usage_is_loaded_in_a_thread(monkeypatch, is_compiled):
    """One that is not compiled is left to `kernel_at_hand`, which says what it does."""
    threads = []
    monkeypatch.setattr(warm_up, "_is_compiled", lambda kernel: is_compiled)
    monkeypatch.setattr(warm_up, "compile_usage_kernel", lambda: threads.append(threading.get_ident()))
    load_usage_kernel()()
    assert len(threads) == is_compiled
    assert threading.get_ident() not in threads


def test_an_error_of_loading_is_raised_to_the_caller(monkeypatch):
    """The thread itself prints nothing."""

    def load() -> None:
        raise MemoryError

    monkeypatch.setattr(warm_up, "_is_compiled", lambda kernel: True)
    monkeypatch.setattr(warm_up, "compile_usage_kernel", load)
    with pytest.raises(MemoryError):
        load_usage_kernel()()


def test_the_other_loop_is_compiled_meanwhile(monkeypatch, tmp_path):
    """A cache of open loops has nothing of closed ones."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    directory = cache_directory({"NUMBA_CACHE_DIR": str(tmp_path)}, KERNEL_MODULES)
    directory.mkdir(parents=True)
    (directory / "kernel.replay-1.py311.1.nbc").touch()
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-such-program"))
    with kernel_in_the_making([PLANS[OPEN]]):
        pass
    with pytest.raises(FileNotFoundError, match="no-such-program"), kernel_in_the_making(PLANS.values()):
        pass
    with pytest.raises(FileNotFoundError, match="no-such-program"), kernel_in_the_making([], with_usage=True):
        pass


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_compiling_is_said_on_a_terminal_alone(is_terminal, name, monkeypatch, tmp_path, capsys):
    """Ten seconds of silence look like a fault; a pipe gets results only."""
    KERNELS[name]()  # so that it is a matter of milliseconds here
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(is_terminal)))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kernel_at_hand([PLANS[name]] if name in PLANS else [], with_usage=name == USAGE)
    out, err = capsys.readouterr()
    assert out == ""
    assert (f"compiling {_WHAT[name]} (once, about 20 seconds)" in err) is is_terminal
    assert is_terminal or err == ""


def test_smooth_mode_in_force_is_compiled_for_with_notice(monkeypatch, tmp_path, capsys):
    """The record tells of it only when it has been looked through."""
    compile_replay_kernel(OPEN_SMOOTH)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    node = RecordingNode()
    node.start(0, records=(_SMOOTH,))
    found = timelines(control_events(node.events)).values()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kernel_at_hand([PLANS[OPEN]], timelines=found)
    assert "smooth" not in capsys.readouterr().err
    kernel_at_hand([in_force_plan()], timelines=found)
    assert f"compiling {_WHAT[OPEN_SMOOTH]} (once, about 20 seconds)" in capsys.readouterr().err


def test_a_watch_says_that_it_compiles(monkeypatch, tmp_path, capsys):
    """Only the record knows that smooth mode was on: a line says so where it takes its time, and only there."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    made = []
    kernel = warm_up._KERNELS[OPEN_SMOOTH]._replace(make=lambda: made.append(OPEN_SMOOTH))
    monkeypatch.setattr(warm_up, "_KERNELS", {**warm_up._KERNELS, OPEN_SMOOTH: kernel})
    node = RecordingNode()
    node.start(START_MS)
    node.quota(_SMOOTH, START_MS)
    found = list(timelines(control_events(node.events)).values())
    smooth_mode_at_hand([PLANS[OPEN]], found)
    smooth_mode_at_hand([in_force_plan()], [empty_timeline()])
    assert (made, capsys.readouterr().err) == ([], "")
    smooth_mode_at_hand([in_force_plan()], found)
    line = "compiling the open-loop replay with smooth mode (once, about 20 seconds)\n"
    assert (made, capsys.readouterr().err) == ([OPEN_SMOOTH], line)


def test_smooth_mode_is_compiled_before_a_watch_needs_it(monkeypatch):
    """With the timeline of what arrived, before the first row."""
    asked = []
    monkeypatch.setattr(watch_node, "smooth_mode_at_hand", lambda *what: asked.append(what))
    node = RecordingNode(4)
    node.start(START_MS)
    node.quota(_SMOOTH, START_MS)
    node.produce("alice", "c1", 10, START_MS)
    plans = [in_force_plan()]
    watched = NodeWatch(node_id=4, plans=plans)
    watched.advance(pa.Table.from_pylist(node.events, schema=arrow_schema()))
    [(of_plans, [timeline])] = asked
    assert list(of_plans) == plans
    assert timeline.steps.where(lambda step: step.record == _SMOOTH)


def test_many_rows_are_not_processed_as_python(monkeypatch):
    """They would take longer than the compiler."""
    made = []
    kernels = {
        name: kernel._replace(make=partial(made.append, name)) for name, kernel in warm_up._KERNELS.items()
    }
    monkeypatch.setattr(warm_up, "_KERNELS", kernels)
    monkeypatch.setattr(warm_up, "_is_compiled", lambda kernel: False)
    later = []
    monkeypatch.setattr(warm_up, "compile_later", later.extend)
    with own_form():
        kernel_at_hand([], with_usage=True, rows=warm_up.INTERPRETED_ROWS + 1)
        kernel_at_hand([PLANS[CLOSED]], rows=warm_up.INTERPRETED_DECISIONS + 1)
        assert (made, later) == ([USAGE, CLOSED], [])
        kernel_at_hand([PLANS[CLOSED]], rows=warm_up.INTERPRETED_DECISIONS)
        assert (made, later) == ([USAGE, CLOSED], [CLOSED])


def test_one_process_compiles_in_the_background(monkeypatch, tmp_path):
    """It takes a lock, compiles what is missing, and others start none meanwhile."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    started = []
    monkeypatch.setattr(
        warm_up, "_started", lambda *arguments, **options: started.append((arguments, options))
    )
    monkeypatch.setattr(warm_up.os, "nice", lambda more: None)
    meanwhile = []

    def compile_one(name):
        compile_later([OPEN])
        meanwhile.append((name, len(started)))

    monkeypatch.setattr(warm_up, "compile_kernel_named", compile_one)
    compile_later([USAGE])
    assert started == [(("--once", USAGE), {"start_new_session": True})]
    warm_up.main(["--once", USAGE])
    assert meanwhile == [(USAGE, 1)]
    compile_later([USAGE])
    assert len(started) == 2


def test_another_processor_has_other_machine_code(monkeypatch):
    """What is copied with an image to another machine is not taken for compiled there."""
    here = cache_directory({}, KERNEL_MODULES)
    assert cache_directory({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, KERNEL_MODULES) != here
    monkeypatch.setattr(compiled, "_this_processor", lambda: "another")
    assert cache_directory({}, KERNEL_MODULES) != here


def test_the_command_compiles_what_is_missing(monkeypatch, tmp_path, capsys):
    """And says what it did, and where that is."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert cli.main(["warm-up"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(_WHAT) + 1
    assert all(
        what in lines[place] and "compiled in" in lines[place] for place, what in enumerate(_WHAT.values())
    )
    assert lines[-1] == f"kept in {str(tmp_path / 'tidegate')!r}"


def test_the_command_needs_a_directory_that_it_can_write(monkeypatch, tmp_path, capsys):
    """Else the work would be lost with the process."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    assert cli.main(["warm-up"]) == 2
    assert "hint: set NUMBA_CACHE_DIR" in capsys.readouterr().err
