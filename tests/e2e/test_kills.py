"""The short version of `make soak ARGS=kills`: a few kills with real clients, quotas, settings and topics changing."""

import os
import random
import sqlite3

import pytest
from tests.kills.round import Round
from tests.kills.run import kill


@pytest.mark.parametrize(("nodes", "kills"), [(1, 3), (3, 2)])
def test_nothing_acknowledged_is_lost_by_kills(tmp_path, nodes, kills):
    """No record, quota, setting, topic, position or row of the usage record; none is there twice."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    (tally,) = kill(kills, seed, nodes=nodes, data=tmp_path, say=print)
    assert tally.kills == kills
    assert min(tally.acknowledged, tally.quotas, tally.rows) > 0  # lives may be too short for more


def lose_half_a_log(data_dir):
    """Cut the segments of a partition: the start finds a torn batch at its end, or refuses."""
    for segment in data_dir.glob("ledger-0/*.log"):
        os.truncate(segment, segment.stat().st_size // 2)


def lose_a_quota(data_dir):
    """Remove one that nobody changes."""
    with sqlite3.connect(data_dir / "tidegate.db") as database:
        database.execute("DELETE FROM quotas WHERE entity LIKE '%auditor%' AND name = 'request_percentage'")


def lose_recorded_rows(data_dir):
    """Remove all that was recorded, before and after it became Parquet."""
    for path in data_dir.glob("usage/**/*"):
        if path.suffix in (".open", ".closed", ".names", ".parquet"):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("lose", "problem"),
    [
        (lose_half_a_log, "ledger-0"),
        (lose_a_quota, "quotas are not as acknowledged: .*request_percentage"),
        (lose_recorded_rows, "usage record"),
    ],
)
def test_what_is_lost_is_noticed(tmp_path, lose, problem):
    """Where a kill loses something, the run ends with what it was."""

    class Careless(Round):
        def _kill(self, **how):
            super()._kill(**how)
            lose(self._broker.data_dir)

    with pytest.raises(AssertionError, match=problem):
        Careless(tmp_path, random.Random(1), nodes=1, kills=1, say=print).run()
