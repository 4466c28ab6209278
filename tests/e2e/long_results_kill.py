"""`kill -9` of jobs that write results, for minutes: in their own process and on Spark."""

import random

import pytest
from tests.e2e.results import killed_again_and_again, write_records


@pytest.mark.parametrize("master", ["", "local[2]"])
def test_what_is_there_is_whole(tmp_path, capsys, master):
    """Whatever is killed when: there are always results, of one run."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    commands = write_records(tmp_path)
    kills = 4 if master else 100
    killed_again_and_again(tmp_path / "out", commands, kills=kills, rng=random.Random(seed), master=master)
    capsys.readouterr()
