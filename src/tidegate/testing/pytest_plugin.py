"""Plugin of pytest: the fixtures `tidegate_broker`, `tidegate_shared_broker` and `tidegate_broker_factory`.

Installed with Tidegate, by the entry point `pytest11`. When a test fails, its report has a section with what each of
these brokers has logged since the test began. Brokers have free ports and directories of their own, so processes of
pytest-xdist do not meet.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tidegate.testing.running_broker import Broker, broker

__all__ = [
    "BrokerFactory",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "tidegate_broker",
    "tidegate_broker_factory",
    "tidegate_shared_broker",
]

MARKER = "tidegate_broker"
REPORT_CHARS_MAX = 20_000
"""Characters of a log in a report, the last ones."""

BrokerFactory = Callable[..., Broker]
"""A function that starts a broker with the arguments of `tidegate.testing.broker` and returns it."""

Logs = dict[Broker, int]
"""Running brokers, and how many characters each had logged when the current test began."""

_LOGS = pytest.StashKey[Logs]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", f"{MARKER}(quotas=, nodes=, sasl=, settings=): how the broker of the test is started"
    )
    config.stash[_LOGS] = {}


@pytest.fixture
def tidegate_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Return a fresh broker of this test alone, started as its marker `tidegate_broker` says."""
    marker = request.node.get_closest_marker(MARKER)
    if marker and marker.args:
        raise TypeError(
            f"marker {MARKER} takes options by name, such as quotas=[...], got {marker.args[0]!r}"
        )
    with ExitStack() as brokers:
        yield _start(brokers, request.config, marker.kwargs if marker else {})


@pytest.fixture(scope="session")
def tidegate_broker_factory(request: pytest.FixtureRequest) -> Iterator[BrokerFactory]:
    """Return a function that starts brokers, which run until the session ends."""
    with ExitStack() as brokers:
        yield lambda **options: _start(brokers, request.config, options)


@pytest.fixture(scope="session")
def tidegate_shared_broker(tidegate_broker_factory: BrokerFactory) -> Broker:
    """Return a broker that all tests of the session share. Give each test topics and client ids of its own."""
    return tidegate_broker_factory()


def _start(brokers: ExitStack, config: pytest.Config, options: dict[str, Any]) -> Broker:
    """Start a broker, to be stopped with `brokers`, whose log is reported while it runs."""
    started = brokers.enter_context(broker(**options))
    logs = config.stash[_LOGS]
    logs[started] = 0
    brokers.callback(logs.pop, started)
    return started


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note where each running broker's log ends."""
    logs = item.config.stash[_LOGS]
    for running in logs:
        logs[running] = len(running.log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what running brokers have logged to the report of a test that failed."""
    report = yield
    if report.failed:
        for running, start in item.config.stash[_LOGS].items():
            text = running.log[start:][-REPORT_CHARS_MAX:]
            if text:
                report.sections.append((f"tidegate broker log ({running.bootstrap})", text))
    return report
