"""`tidegate replay --in-force` over records of which something is missing."""

import pytest
from tests.replaying.files import write_events
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main

_T0 = 1_700_000_000_000


@pytest.mark.parametrize(
    ("left_out", "exit_code", "said"),
    [
        (slice(0, 0), 0, "in force: 8 of 8 decisions as recorded"),
        (slice(6, 7), 0, "in force: 2 of 2 decisions as recorded"),
        (slice(0, 5), 3, "in force: no decision could be compared with what was recorded"),
    ],
)
def test_what_could_not_be_compared_is_no_success(tmp_path, capsys, left_out, exit_code, said):
    """All rows; a file is missing; an hour alone, in whose rows no quota in force is stated."""
    node = RecordingNode()
    node.start(_T0)
    for second in range(4):
        node.produce("alice", "c1", 10, _T0 + second)
    del node.events[left_out]
    write_events(tmp_path, node.events)
    assert main(["replay", str(tmp_path), "--in-force"]) == exit_code
    assert said in capsys.readouterr().out
