"""What holds for every test: in which order they run, and that one which did not run is a failure."""

import gc
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from tests.open_stores import close_stores

if TYPE_CHECKING:
    from tests.room import Room

ROOT = Path(__file__).parent.parent
SLOW_TIERS = ("tests/spark", "src/tidegate/pipeline", "tests/e2e", "tests/limits")
LONG_FILES = (*SLOW_TIERS[:-1], "tests/differing", "tests/simulation")  # beside those that run alone
NOT_RUN = ("skipped", "xfailed", "xpassed")
MANY_OBJECTS = 100_000  # fewer than are imported
LOOKED_AT_EVERY = 16  # tests: to list so many objects takes milliseconds
ROOM: "pytest.StashKey[Room]" = pytest.StashKey()

collect_ignore_glob = ["*/long_*.py"]
"""Only those that are named are run. Looked into for doctests, they would take a second of each process."""

# A shared machine stalls now and then: a deadline per example would fail tests that are right.
settings.register_profile("tidegate", deadline=None, print_blob=True)
settings.load_profile("tidegate")


def _tier(item: pytest.Item) -> int:
    """Return 0 for a test of the quick tiers, else 1 plus its place among the slow ones."""
    return _place(item, SLOW_TIERS)


def _place(item: pytest.Item, paths: Sequence[str]) -> int:
    """Return 1 plus the place of the path that a test's begins with, 0 where none does."""
    path = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
    return next((at for at, begin in enumerate(paths, 1) if path.startswith(begin)), 0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tiers in order, from quick to slow; within one, the random order stays.

    In one of several processes instead: first the files with tests that run alone, those tests first, so that nobody
    waits for a long one that runs elsewhere; then long files; in the end the short ones, so that all processes end
    together.
    """
    if ROOM not in config.stash:
        items.sort(key=_tier)
        return
    measuring = {item.path for item in items if _is_alone(item)}
    items.sort(
        key=lambda item: (item.path not in measuring, not _is_alone(item), not _place(item, LONG_FILES))
    )


def pytest_configure(config: pytest.Config) -> None:
    """In one of several processes of pytest-xdist, share the room that tests run in with the others."""
    if hasattr(config, "workerinput"):
        from tests.room import Room

        config.stash[ROOM] = Room(Path(config.option.basetemp).parent)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[Any]:
    """Run a test that is marked `alone` while no other process runs any, and those of a file that follow it, too."""
    room = item.config.stash.get(ROOM, None)
    if room is None:
        return (yield)
    room.enter(alone=_is_alone(item))
    try:
        return (yield)
    finally:
        if not (_is_alone(item) and nextitem and _is_alone(nextitem) and nextitem.path == item.path):
            room.leave()


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


_number = itertools.count()


def pytest_runtest_setup() -> None:
    """Let collections of garbage pass over what was imported: many tests ask for one, half a second each.

    Tests that put aside what lives themselves (`gc.unfreeze`) end that: then much is old. To ask for it by
    `gc.get_freeze_count` would take as long as to walk over all that was imported, before each of thousands of tests.
    """
    if next(_number) % LOOKED_AT_EVERY == 0 and len(gc.get_objects(generation=2)) > MANY_OBJECTS:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def stores_are_closed() -> Iterator[None]:
    """Close the files of stores that a test has left open."""
    yield
    close_stores()


def _not_run(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return []
    return [report.nodeid for outcome in NOT_RUN for report in reporter.stats.get(outcome, [])]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the whole run when a test was skipped or expected to fail: nothing is skipped silently."""
    if _not_run(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which tests made the run fail by not running."""
    not_run = _not_run(config)
    if not_run:
        terminalreporter.section("FAILED: tests that did not run", red=True)
        for nodeid in not_run:
            terminalreporter.line(nodeid, red=True)
