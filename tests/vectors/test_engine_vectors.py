"""Every engine vector of Apache Kafka 4.3.1, bit for bit, and the runner that plays them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from players import (
    client_quota_manager,
    connection_rate,
    controller_mutation,
    custom_callback,
    request_quota_manager,
)
from players._doubles import decode, encode, normalise
from run import VectorFileError, main, run_file

HERE = Path(__file__).parent
FILES = sorted((HERE / "engine").glob("*.json"))
FAMILIES = {
    "channel_mute",
    "client_quota_manager",
    "connection_rate",
    "controller_mutation",
    "custom_callback",
    "delay_queue",
    "entity_resolution",
    "quota_admin",
    "rate",
    "request_quota_manager",
    "sanitizer",
    "sensor_quota",
    "token_bucket",
}

PLAYERS = {
    "client_quota_manager": client_quota_manager._Player,
    "connection_rate": lambda **config: connection_rate._Player(config),
    "controller_mutation": controller_mutation._Player,
    "custom_callback": custom_callback._Player,
    "request_quota_manager": request_quota_manager._Player,
}
"""Those whose metrics can be read."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_engine_gives_what_the_released_classes_gave(path: Path) -> None:
    """Each step of each scenario answers with equal bits, equal milliseconds and equal texts."""
    outcome = run_file(path)
    assert outcome.failures[:5] == []
    assert outcome.failed == 0
    assert outcome.passed > 0


@pytest.mark.parametrize("family", sorted(PLAYERS))
def test_scrapes_between_all_steps_change_nothing(family: str) -> None:
    """Every recorded decision is the same to the bit when all metrics are read after each step."""

    def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
        player = PLAYERS[family](**scenario["config"])
        for step in player.play(scenario):
            player.scrape(ahead_ms=0)
            player.scrape(ahead_ms=700)
            yield step

    outcome = run_file(HERE / "engine" / f"{family}.json", play)
    assert outcome.failures[:5] == []
    assert outcome.passed > 0


def test_every_family_is_here() -> None:
    """No file of vectors was lost, and none is left without a player."""
    assert {path.stem for path in FILES} == FAMILIES
    assert {path.stem for path in (HERE / "players").glob("[a-z]*.py")} == FAMILIES


def _vector_file(folder: Path, **changes: object) -> Path:
    steps = [
        {"op": "mute", "args": {}, "expect": {"state": "MUTED"}},
        {"op": "maybe_unmute", "args": {}, "expect": {"state": "NOT_MUTED", "unmuted": True}},
    ]
    document = {"family": "channel_mute", "scenarios": [{"name": "made-up", "config": {}, "steps": steps}]}
    path = folder / "vectors.json"
    path.write_text(json.dumps(document | changes))
    return path


def test_runner_counts_steps_and_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that passes prints only the closing line and exits 0."""
    assert main([str(_vector_file(tmp_path))]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed\n"


def test_runner_prints_a_failing_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong step is shown with scenario, op, arguments, expected and got; the exit code is 1."""
    steps = [{"op": "event", "args": {"event": "RESPONSE_SENT"}, "expect": {"state": "MUTED"}}]
    path = _vector_file(tmp_path, scenarios=[{"name": "wrong", "config": {}, "steps": steps}])
    assert main([str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f'{path}: wrong step 0: event {{"event": "RESPONSE_SENT"}}'
    assert lines[1] == "  expected {'state': 'MUTED'}"
    assert lines[2].startswith("  got      {'state': 'NOT_MUTED'")
    assert lines[3] == "0 passed, 1 failed"


def test_runner_fails_the_steps_that_could_not_be_played(tmp_path: Path) -> None:
    """An op that the player does not know fails its step and all that follow it."""
    mute = {"op": "mute", "args": {}, "expect": {"state": "MUTED"}}
    steps = [{"op": "dance", "args": {}, "expect": {}}, mute]
    outcome = run_file(_vector_file(tmp_path, scenarios=[{"name": "odd", "config": {}, "steps": steps}]))
    assert (outcome.passed, outcome.failed) == (0, 2)
    assert "has no op 'dance'" in outcome.failures[0]


def test_runner_names_an_unknown_family(tmp_path: Path) -> None:
    """A family without a player is refused with the list of those that have one."""
    with pytest.raises(VectorFileError, match=r"unknown family '\.\./x', expected one of .*channel_mute"):
        run_file(_vector_file(tmp_path, family="../x"))


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '{"family": "rate"}', "[" * 100_000],
    ids=["torn", "list", "empty", "deep"],
)
def test_runner_refuses_what_is_no_vector_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """A file that is not JSON, or not a vector file, gives one line on stderr and exit code 2."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {str(path)!r} is not ")


def test_runner_names_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    """A path that is not there is named with the system's reason."""
    assert main(["nowhere.json"]) == 2
    assert capsys.readouterr().err == "error: cannot read 'nowhere.json': No such file or directory\n"


def test_runner_works_as_a_program() -> None:
    """The documented command line runs from anywhere."""
    command = [sys.executable, str(HERE / "run.py"), str(HERE / "engine" / "channel_mute.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "720 passed, 0 failed\n")


def test_doubles_compare_by_bits_and_nan_is_one() -> None:
    """The number of a pair is for reading: bits decide, zero has a sign, every NaN is equal."""
    assert decode([1.0, "3ff8000000000000"]) == 1.5
    assert encode(0.0) != encode(-0.0)
    assert normalise(["NaN", "fff8000000000001"]) == encode(float("nan"))
    assert normalise({"a": (1, 1.5)}) == {"a": [1, encode(1.5)]}


def test_a_broken_pair_is_refused() -> None:
    """What is no pair of number and bits is named."""
    with pytest.raises(ValueError, match=r"expected \[number, 16 hex digits\], got \[1\.0, 'xyz'\]"):
        decode([1.0, "xyz"])
