"""Our broker answers as a real Apache Kafka 4.3.1 did, scenario by scenario, under `tidegate.kafka.exact`.

Every scenario of every file in `tests/vectors/wire` is played, by the functions of `tests/vectors/wire.py`. Those in
`NOT_PLAYED` have to go another way, for the reason that it names: one that goes as recorded must leave the list.
"""

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.broker import Broker
from tests.e2e.lateness import Lateness
from tests.e2e.not_played import NOT_PLAYED, NOT_SERVED
from tests.vectors.wire import Result, play_recording, rows_of
from tests.vectors.wire_brokers import ask, started
from tests.vectors.wire_recording import read_recording

from tidegate.wire import API_BY_KEY

ROOT = Path(__file__).parents[2]
DIFFERENCES = ROOT / "docs" / "kafka-differences.md"
FILES = {path.stem: path for path in sorted((ROOT / "tests" / "vectors" / "wire").glob("*.json"))}
API_VERSIONS = 18
SCENARIOS, BROKEN_OFF, PLAYED_IN_PART = 709, 79, 25
"""Recorded scenarios; those broken off at an API that is not served, or for a row; those with steps that differ."""
AT_A_TIME = 8
"""Files played side by side, a broker each, the longest first: they wait for throttles most of the time."""


def listed(file: str) -> list[tuple[str, str]]:
    """Return the listed scenarios of a file, each with its reason."""
    return [
        (entry.partition(":")[0], reason)
        for reason, names in NOT_PLAYED.get(file, {}).items()
        for entry in names.split()
    ]


def test_list_names_what_exists_and_why() -> None:
    """What is listed is a recorded scenario, once, and the reason is an API or a row of the differences."""
    rows = set(re.findall(r"^\| ([A-Z]\d+) \|", DIFFERENCES.read_text(), re.MULTILINE))
    assert NOT_PLAYED.keys() <= FILES.keys()
    for file, reasons in NOT_PLAYED.items():
        assert reasons.keys() <= rows | NOT_SERVED
        steps = {each["name"]: len(each["steps"]) for each in read_recording(FILES[file]).scenarios}
        names = [name for name, _ in listed(file)]
        assert len(names) == len(set(names)), f"{file}: a scenario is listed twice"
        assert set(names) <= steps.keys()
        assert all(max(row.steps, default=0) < steps[name] for name, row in rows_of(file).items())


def test_number_of_scenarios_played() -> None:
    """As many are played as were recorded, but for those in the list, whose number is known."""
    in_part = sum(bool(row.steps) for file in FILES for row in rows_of(file).values())
    assert sum(len(read_recording(path).scenarios) for path in FILES.values()) == SCENARIOS
    assert (sum(len(listed(file)) for file in FILES) - in_part, in_part) == (BROKEN_OFF, PLAYED_IN_PART)


def test_what_is_not_served_is_not_offered(broker: Broker) -> None:
    """The broker offers every API of Kafka's but those that are listed as not served."""
    offered = {key["api_key"] for key in ask(("127.0.0.1", broker.port), API_VERSIONS, 0, {})["api_keys"]}
    assert {api.name for key, api in API_BY_KEY.items() if key not in offered} == NOT_SERVED


@pytest.fixture(scope="session")
def played(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[list[Result]]]]:
    """Return how the scenarios went, by file, for the files whose tests are to run."""
    here = [item for item in request.session.items if item.path == Path(__file__)]
    names = [item.callspec.params["file"] for item in here if "played" in item.fixturenames]
    with Lateness() as lateness, ThreadPoolExecutor(AT_A_TIME) as pool:
        longest_first = sorted(names, key=lambda name: -FILES[name].stat().st_size)
        yield {name: pool.submit(_play, name, lateness) for name in longest_first}


def _play(file: str, lateness: Lateness) -> list[Result]:
    recording = read_recording(FILES[file])
    with started("tidegate", recording) as address:
        return list(play_recording(recording, address, lateness=lateness))


@pytest.mark.parametrize("file", FILES)
def test_answers_as_recorded(played: dict[str, Future[list[Result]]], file: str) -> None:
    """Every scenario of a file goes as recorded, in order, on one broker that starts empty, but those listed."""
    results = played[file].result()
    failures = [f"{result.scenario}, {result.failure}" for result in results if result.failure]
    assert not failures, f"{len(failures)} scenarios differ:\n" + "\n".join(failures)
    skipped = {result.scenario: result.waits_for for result in results if result.waits_for}
    assert skipped == dict(listed(file)), "the list names another reason, or what goes as recorded: play it"
