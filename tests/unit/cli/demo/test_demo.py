"""The options of `tidegate demo`."""

import pytest

from tidegate.cli.main import main


@pytest.mark.parametrize("seconds", ["0", "4", "601", "-5", "1e1", "ten", "\uff19", "9999999"])
def test_seconds_that_make_no_demo_are_refused(seconds, capsys):
    """Too short shows nothing, too long fills the disk; the error names what was given."""
    with pytest.raises(SystemExit) as ended:
        main(["demo", f"--seconds={seconds}"])
    assert ended.value.code == 2
    assert f"expected whole seconds from 5 to 600, got {seconds!r}" in capsys.readouterr().err


def test_help_says_what_will_happen(capsys):
    """Who reads the help knows what runs, where it writes and how much."""
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    told = capsys.readouterr().out
    assert "sets quotas over the wire" in told
    assert "./demo-out" in told
    assert "GB" in told
