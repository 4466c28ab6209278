"""Watched brokers, each with a neighbour."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.limits.watched import Connection, WatchedBroker


@pytest.fixture(scope="session", autouse=True)
def _many_files() -> None:
    """Allow the tests as many connections as the system lets them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def start_watched(directory: Path, **overrides: str) -> WatchedBroker:
    """Return a watched broker with the topics `limits` and `neighbour`, and a neighbour."""
    watched = WatchedBroker(directory, {key.replace("_", "."): value for key, value in overrides.items()})
    watched.start()
    with Connection(watched.port) as client:
        client.create("limits")
        client.create("neighbour")
    watched.start_neighbour("neighbour")
    watched.wait_quiet()
    return watched


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedBroker]:
    """Return a watched broker that the tests of a module share, with the topic `limits` and a neighbour."""
    watched = start_watched(tmp_path_factory.mktemp("watched"), group_initial_rebalance_delay_ms="0")
    yield watched
    watched.close()
    assert "Traceback" not in watched.log, watched.log


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., WatchedBroker]]:
    """Return a function that starts a watched broker of the test's own, given settings to override."""
    started: list[WatchedBroker] = []

    def start(**overrides: str) -> WatchedBroker:
        started.append(start_watched(tmp_path, **overrides))
        return started[-1]

    yield start
    for watched in started:
        watched.close()
        assert "Traceback" not in watched.log, watched.log
