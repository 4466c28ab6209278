"""Compiling the kernel ahead."""

import pytest
from tests.replaying.kernel import replay_events
from tests.replaying.node import RecordingNode

from tidegate.pipeline.replay.kernel import replay_kernel
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.warm_up import (
    compile_replay_kernel,
    kernel_at_hand,
    kernel_in_the_making,
)


def test_one_form_of_the_kernel_serves_all():
    """What is compiled ahead is what a replay needs: types that differ would mean compiling twice."""
    compile_replay_kernel()
    node = RecordingNode()
    node.start(0)
    node.produce("alice", "c1", 10, 1)
    replay_events(node.events, Plan(name="p", records=()))
    assert len(replay_kernel().signatures) == 1


def test_a_compiled_kernel_is_not_compiled_again(monkeypatch, tmp_path):
    """Where the cache holds it, no process is started."""
    compile_replay_kernel()
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-such-program"))
    with kernel_in_the_making():
        pass


@pytest.mark.parametrize("is_terminal", [True, False])
def test_compiling_is_said_on_a_terminal_alone(is_terminal, monkeypatch, tmp_path, capsys):
    """Ten seconds of silence look like a fault; a pipe gets results only."""
    compile_replay_kernel()  # so that it is a matter of milliseconds here
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(is_terminal)))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kernel_at_hand()
    out, err = capsys.readouterr()
    assert out == ""
    assert ("compiling the replay kernel" in err) is is_terminal
    assert is_terminal or err == ""
