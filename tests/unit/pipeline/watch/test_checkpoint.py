"""What a checkpoint may hold."""

import pickle
from pathlib import Path

import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline import layout
from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.watch import checkpoint
from tidegate.pipeline.watch.checkpoint import Checkpoint, WatchState, dumped, loaded
from tidegate.pipeline.watch.totals import Totals


class _Made:
    """Has something made while it is read."""

    def __init__(self, made, *given):
        self._made, self._given = made, given

    def __reduce__(self):
        return self._made, self._given


@pytest.mark.parametrize("of_ours", [Checkpoint, OutputError])
def test_no_other_class_of_ours_is_made(of_ours):
    """Its making may have effects. It is said as of anything else that is no checkpoint."""
    with pytest.raises(ConfigError, match="is damaged, or another version of Tidegate wrote it") as raised:
        loaded(pickle.dumps(_Made(of_ours, "x")))
    assert raised.value.hint == "use another directory for --checkpoint"
    assert f"{of_ours.__name__} is not part of a checkpoint" in str(raised.value.__cause__)


@pytest.mark.parametrize(
    "made", [(eval, "1"), (Path, "/"), (pickle.loads, pickle.dumps(1)), (getattr, Plan, "records")]
)
def test_nothing_is_called(made):
    """Of Python's own, or of what is installed."""
    with pytest.raises(ConfigError):
        loaded(pickle.dumps(_Made(*made)))


def test_its_parts_are():
    """As they were."""
    state = {"plans": [Plan(name="a", records=())], "totals": Totals(window_ms=1)}
    assert loaded(dumped(state)) == state


def test_a_file_is_no_checkpoint(tmp_path):
    """Nor is what lies below it; by name, with a hint."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=rf"^the checkpoint '{path}' cannot be used: ") as raised:
            Checkpoint(path)
        assert raised.value.hint == "use another directory for --checkpoint"


def written(directory):
    """Write a checkpoint, and return its file."""
    with Checkpoint(directory) as held:
        held.write(WatchState(directory=str(directory), plans=[], totals=Totals(window_ms=1)))
    return directory / "watch"


def test_an_empty_state_is_damaged(tmp_path):
    """A state that lacks all it should have."""
    first_line, _, _ = written(tmp_path).read_bytes().partition(b"\n")
    (tmp_path / "watch").write_bytes(first_line + b"\n" + dumped(object.__new__(WatchState)))
    with Checkpoint(tmp_path) as held, pytest.raises(ConfigError, match="is damaged, or another version"):
        held.read(directory=tmp_path, plans=[])


def test_a_checkpoint_of_another_version_is_refused_by_name(tmp_path):
    """One whose first line names another layout, and one from before there was such a line; either stays as it is."""
    path = written(tmp_path)
    with Checkpoint(tmp_path) as held:
        assert held.read(directory=tmp_path, plans=[]) is not None
        state = path.read_bytes().partition(b"\n")[2]
        refused = {
            b"tidegate watch 99-abc\n"
            + state: r"by another version of Tidegate \(layout 99-abc, expected 6-\w{12}\)$",
            state: "by an earlier version of Tidegate$",
        }
        for data, reason in refused.items():
            path.write_bytes(data)
            with pytest.raises(
                ConfigError, match=f"the checkpoint '{tmp_path}' was written {reason}"
            ) as raised:
                held.read(directory=tmp_path, plans=[])
            assert raised.value.hint == "use another directory for --checkpoint"
            assert path.read_bytes() == data


@pytest.mark.parametrize("change", ["field", "column"])
def test_another_layout_has_another_name(tmp_path, monkeypatch, change):
    """A field more in a part, or another number of columns, makes checkpoints from before another version's."""
    written(tmp_path)
    if change == "field":
        monkeypatch.setitem(Totals.__annotations__, "added", int)
    else:
        monkeypatch.setattr(layout, "USE_COLUMNS", layout.USE_COLUMNS + 1)
    checkpoint._layout.cache_clear()
    try:
        with Checkpoint(tmp_path) as held, pytest.raises(ConfigError, match="another version of Tidegate"):
            held.read(directory=tmp_path, plans=[])
    finally:
        checkpoint._layout.cache_clear()
