"""Compiling the kernel ahead."""

import pytest
from tests.replaying.kernel import replay_events
from tests.replaying.node import RecordingNode

from tidegate.pipeline.replay.closed_loop_kernel import run_kernel, take_in_kernel
from tidegate.pipeline.replay.compiled import cache_directory
from tidegate.pipeline.replay.kernel import KERNEL_MODULES, replay_kernel
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.warm_up import (
    CLOSED,
    OPEN,
    compile_replay_kernel,
    kernel_at_hand,
    kernel_in_the_making,
)

PLANS = {loop: Plan(name="p", records=(), is_closed=loop == CLOSED) for loop in (OPEN, CLOSED)}


def test_one_form_of_the_kernel_serves_all():
    """What is compiled ahead is what a replay needs: types that differ would mean compiling twice."""
    node = RecordingNode()
    node.start(0)
    node.produce("alice", "c1", 10, 1)
    for loop, plan in PLANS.items():
        compile_replay_kernel(loop)
        replay_events(node.events, plan)
    for kernel in (replay_kernel(), take_in_kernel(), run_kernel()):
        assert len(kernel.signatures) == 1


@pytest.mark.parametrize("loop", PLANS)
def test_a_compiled_kernel_is_not_compiled_again(monkeypatch, tmp_path, loop):
    """Where the cache holds it, no process is started."""
    compile_replay_kernel(loop)
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-such-program"))
    with kernel_in_the_making([PLANS[loop]]):
        pass


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


@pytest.mark.parametrize("loop", PLANS)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_compiling_is_said_on_a_terminal_alone(is_terminal, loop, monkeypatch, tmp_path, capsys):
    """Ten seconds of silence look like a fault; a pipe gets results only."""
    compile_replay_kernel(loop)  # so that it is a matter of milliseconds here
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(is_terminal)))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kernel_at_hand([PLANS[loop]])
    out, err = capsys.readouterr()
    assert out == ""
    assert (f"compiling the {loop} loop" in err) is is_terminal
    assert is_terminal or err == ""
