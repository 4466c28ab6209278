"""Our broker answers as a real Apache Kafka 4.3.1 did, scenario by scenario, under `tidegate.kafka.exact`.

Every scenario of every file in `tests/vectors/wire` is played. Those in `NOT_PLAYED` have to go another way: one that
goes as recorded must leave the list.
"""

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.broker import Broker
from tests.e2e.lateness import Lateness
from tests.e2e.not_played import NOT_PLAYED, NOT_SERVED
from tests.vectors.wire_player import (
    Player,
    StepDiffersError,
    ask,
    broker_config,
    files,
    first_use,
    remove_quotas,
    scenarios,
    with_sasl,
)

from tidegate.wire import API_BY_KEY

DIFFERENCES = Path(__file__).parents[2] / "docs" / "kafka-differences.md"
API_VERSIONS = 18
SCENARIOS, BROKEN_OFF, PLAYED_IN_PART = 689, 243, 14
"""Recorded scenarios; those broken off at an API that is not served, or for a row; those with steps that differ."""
AT_A_TIME = 4
"""Files played side by side, each on a broker of its own: they wait for throttles most of the time."""


@dataclass(frozen=True, slots=True)
class Listed:
    """How a scenario goes that is not played: the reason, and the steps that differ or the first that may."""

    reason: str
    steps: frozenset[int] = frozenset()
    first: int = 0


def listed(file: str) -> dict[str, Listed]:
    """Return the listed scenarios of a file by name."""
    found: dict[str, Listed] = {}
    by_name = {scenario["name"]: scenario for scenario in scenarios(file)}
    for reason, names in NOT_PLAYED.get(file, {}).items():
        for entry in names.split():
            name, _, steps = entry.partition(":")
            assert name in by_name, f"{file}: there is no scenario {name}"
            assert name not in found, f"{file}: {name} is listed twice"
            if steps:
                found[name] = Listed(reason, steps=frozenset(map(int, steps.split(","))))
            elif reason in NOT_SERVED and not with_sasl(file):
                first = first_use(by_name[name], reason)
                assert first is not None, f"{file}: {name} does not use {reason}"
                found[name] = Listed(reason, first=first)
            else:
                found[name] = Listed(reason)
    return found


def test_list_names_what_exists_and_why() -> None:
    """What is listed is a recorded scenario that uses an API which is not served, or shows a row of the differences."""
    rows = set(re.findall(r"^\| ([A-Z]\d+) \|", DIFFERENCES.read_text(), re.MULTILINE))
    assert NOT_PLAYED.keys() <= set(files())
    for file in NOT_PLAYED:
        assert {entry.reason for entry in listed(file).values()} <= rows | NOT_SERVED
        assert NOT_PLAYED[file].keys() <= rows | NOT_SERVED


def test_number_of_scenarios_played() -> None:
    """As many are played as were recorded, but for those in the list, whose number is known."""
    entries = [entry.steps for file in files() for entry in listed(file).values()]
    assert sum(len(scenarios(file)) for file in files()) == SCENARIOS
    assert (sum(not steps for steps in entries), sum(bool(steps) for steps in entries)) == (
        BROKEN_OFF,
        PLAYED_IN_PART,
    )


def test_what_is_not_served_is_not_offered(broker: Broker) -> None:
    """The broker offers every API of Kafka's but those that are listed as not served."""
    offered = {key["api_key"] for key in ask(broker.port, API_VERSIONS, 0, {})["api_keys"]}
    assert {api.name for key, api in API_BY_KEY.items() if key not in offered} == NOT_SERVED


@pytest.fixture(scope="session")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[list[str]]]]:
    """Return what differs, by file, for the files whose tests are to run."""
    here = [item for item in request.session.items if item.path == Path(__file__)]
    names = [item.callspec.params["file"] for item in here if "played" in item.fixturenames]
    with Lateness() as lateness, ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {
            name: pool.submit(_differences, name, tmp_path_factory.mktemp(name), lateness) for name in names
        }


@pytest.mark.parametrize("file", files())
def test_answers_as_recorded(played: dict[str, Future[list[str]]], file: str) -> None:
    """Every scenario of a file, in order, on one broker that starts empty; what is listed goes another way."""
    failures = played[file].result()
    assert not failures, f"{len(failures)} scenarios differ:\n" + "\n".join(failures)


def _differences(file: str, directory: Path, lateness: Lateness) -> list[str]:
    known = listed(file)
    broker = Broker(directory, {**broker_config(file), "tidegate.kafka.exact": "true"}).start()
    try:
        problems = [
            _problem(Player(broker.port, lateness), scenario, known.get(scenario["name"]))
            for scenario in scenarios(file)
        ]
    finally:
        broker.close()
    return [problem for problem in problems if problem is not None]


def _problem(player: Player, scenario: dict[str, Any], entry: Listed | None) -> str | None:
    """Play a scenario; return what is wrong with how it went, if anything is."""
    broken_off = entry is not None and not entry.steps
    try:
        player.play(scenario, entry.steps if entry else frozenset())
    except StepDiffersError as error:
        remove_quotas(player.port)
        return None if broken_off and error.step >= entry.first else str(error)
    return f"{scenario['name']}: went as recorded though it is listed: play it" if broken_off else None
