"""Compiling the kernel ahead."""

from tests.replaying.kernel import replay_events
from tests.replaying.node import RecordingNode

from tidegate.pipeline.replay.kernel import replay_kernel
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.warm_up import compile_replay_kernel, kernel_in_the_making


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
