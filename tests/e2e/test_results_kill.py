"""`kill -9` of jobs that write results, and a full disk: what was there is there, whole, or what comes after."""

import json
import random
import subprocess
import sys

from tests.e2e.results import check_alone, killed_again_and_again, results_in, write_records

from tidegate.cli.main import main

_KILLS = 4
_LIMITS_BYTES = (0, 500, 2000, 5000)

_ON_A_FULL_DISK = """\
import json, resource, sys
from itertools import product
from tidegate.cli.main import main
_, most_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)
for command, limit_bytes in product(json.loads(sys.argv[1]), json.loads(sys.argv[2])):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, most_bytes))
    exit_code = main(command)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    print(exit_code)
"""


def test_what_is_there_is_whole(tmp_path, capsys):
    """Two records and several commands in turns, killed anywhere: there are always results, and of one run."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    commands = write_records(tmp_path)
    killed_again_and_again(tmp_path / "out", commands, kills=_KILLS, rng=random.Random(seed))
    capsys.readouterr()


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """Wherever it is full, the command ends with the reason and takes back what it wrote."""
    out = tmp_path / "out"
    commands = write_records(tmp_path)
    assert main(commands[-1]) == 0
    before = results_in(out)
    done = subprocess.run(
        [sys.executable, "-c", _ON_A_FULL_DISK, json.dumps(commands[:2]), json.dumps(_LIMITS_BYTES)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["2"] * 2 * len(_LIMITS_BYTES)
    said = [f"error: cannot write to {str(out)!r}: File too large", "hint: give another directory"]
    assert done.stderr.splitlines() == said * 2 * len(_LIMITS_BYTES)
    assert results_in(out) == before
    check_alone(out)
