"""Play what a real Apache Kafka 4.3.1 answered (`tests/vectors/wire`) against a broker, and say what differs.

Each file needs a broker with its own settings and an empty cluster: --start makes one for each file, --bootstrap names
one that is there, which is refused where it does not fit. A scenario that differs because the broker does not offer
an API is skipped, and the API is named. Tidegate is played with tidegate.kafka.exact=true; what it answers
otherwise on purpose (tests/e2e/not_played.py, docs/kafka-differences.md) is skipped, and the row is named.
"""

import argparse
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a program, only this directory is there

from tests.e2e.lateness import Lateness
from tests.e2e.not_played import NOT_PLAYED, NOT_SERVED, OWN_TEXTS
from tests.vectors.wire_arrivals import Arrivals
from tests.vectors.wire_brokers import UnusableBrokerError, inspect, login_of, remove_quotas, started
from tests.vectors.wire_player import NO_EXCEPTIONS, Address, Exceptions, Player, StepDiffersError
from tests.vectors.wire_recording import Recording, RecordingError, read_recording, uses

from tidegate.errors import TidegateError

__all__ = ["Result", "Row", "main", "play_recording", "rows_of"]

PASSED, FAILED, UNUSABLE, STOPPED = 0, 1, 2, 130
_EXAMPLES = """\
examples:
  python tests/vectors/wire.py --start tidegate tests/vectors/wire/*.json
  python tests/vectors/wire.py --start kafka tests/vectors/wire/produce_throttle.json
  python tests/vectors/wire.py --bootstrap 127.0.0.1:9092 tests/vectors/wire/frames.json

The last line is 'N passed, N failed, N skipped', counted in scenarios. All files take some five minutes for Tidegate
and twice that for Kafka, most of it waiting for throttles to end. Times are strict: an answer may never be early, and
late by no more than this program itself was kept waiting. A change that a Kafka acknowledges is waited for until it
shows it; for what it does not show (ACLs, credentials) there is --settle.
exit code: 0 nothing failed; 1 a scenario failed; 2 wrong usage, or a file or broker that cannot be used
"""
_TIDEGATE = Exceptions(not_listed=NOT_SERVED, own_texts=OWN_TEXTS, without_features=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of docs/kafka-differences.md and the steps of a scenario that show it; no steps: any of them may."""

    name: str
    steps: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a scenario went: `failure` in one line, or what it `waits_for` (an API or a row), or as recorded."""

    scenario: str
    failure: str | None = None
    waits_for: str | None = None


def rows_of(file: str) -> dict[str, Row]:
    """Return the scenarios of a file that Tidegate answers otherwise on purpose, by name."""
    entries = [
        (reason, *entry.partition(":")[::2])
        for reason, names in NOT_PLAYED.get(file, {}).items()
        if reason not in NOT_SERVED
        for entry in names.split()
    ]
    return {
        name: Row(name=reason, steps=frozenset(map(int, filter(None, steps.split(",")))))
        for reason, name, steps in entries
    }


def play_recording(
    recording: Recording, address: Address, *, lateness: Lateness | None = None, settle_ms: int = 0
) -> Iterator[Result]:
    """Play a file, in order, on a broker that is empty. `lateness` and `settle_ms` are those of `Player`.

    Raises `UnusableBrokerError`.
    """
    broker = inspect(address, recording)
    if recording.with_sasl and "SaslHandshake" in broker.not_offered:
        yield from (Result(scenario=each["name"], waits_for="SaslHandshake") for each in recording.scenarios)
        return
    await_change = None if broker.is_tidegate else Arrivals(address, login_of(recording)).await_change
    exceptions, rows = (_TIDEGATE, rows_of(recording.name)) if broker.is_tidegate else (NO_EXCEPTIONS, {})
    for scenario in recording.scenarios:
        player = Player(address, exceptions, lateness, settle_ms, await_change)
        result = _play(player, scenario, rows.get(scenario["name"]), broker.not_offered)
        if result.failure or result.waits_for:
            with suppress(OSError, TidegateError):  # the next scenario says it, where the broker is gone
                remove_quotas(address, login_of(recording))
        yield result


def _play(player: Player, scenario: dict[str, Any], row: Row | None, not_offered: frozenset[str]) -> Result:
    name = scenario["name"]
    try:
        player.play(scenario, row.steps if row else frozenset())
    except StepDiffersError as error:
        if row and not row.steps:
            return Result(scenario=name, waits_for=row.name)
        used = (api for number, api in uses(scenario) if number <= error.step and api in not_offered)
        missing = next(used, None)
        return Result(scenario=name, failure=None if missing else str(error), waits_for=missing)
    if row and not row.steps:
        return Result(scenario=name, failure=f"went as recorded though {row.name} is said to show in it")
    return Result(scenario=name, waits_for=row.name if row else None)


def main(arguments: list[str] | None = None) -> int:
    """Play the files that the command line names and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="wire.py",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bootstrap", metavar="HOST:PORT", type=_address, help="a broker that is there")
    where.add_argument(
        "--start", choices=("kafka", "tidegate"), help="start one for each file (kafka: takes Java and Maven)"
    )
    parser.add_argument(
        "--settle",
        metavar="MS",
        type=_milliseconds,
        default=0,
        help="wait so many ms longer for changes to arrive at the broker: for a Kafka on a busy machine",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path, help="a file of recordings")
    options = parser.parse_args(arguments)
    report, unusable = Report(), 0
    with Lateness() as lateness:
        for path in options.files:
            try:
                recording = read_recording(path)
                broker = (
                    started(options.start, recording) if options.start else nullcontext(options.bootstrap)
                )
                with broker as address:
                    played = play_recording(recording, address, lateness=lateness, settle_ms=options.settle)
                    report.add_file(recording, played)
            except (RecordingError, UnusableBrokerError) as error:
                unusable += 1
                print(f"error: {path}: {error}", file=sys.stderr, flush=True)
    report.print_end()
    return UNUSABLE if unusable else FAILED if report.failed else PASSED


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _milliseconds(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds")
    return int(text)


class Report:
    """Failures as they come on stdout, progress on stderr, what was skipped and the numbers at the end."""

    def __init__(self) -> None:
        self.passed = self.failed = 0
        self.skipped: dict[str, list[str]] = defaultdict(list)

    def add_file(self, recording: Recording, results: Iterator[Result]) -> None:
        """Go through the results of a file and say how it is getting on."""
        begun, before = time.monotonic(), self._counts()
        for number, result in enumerate(results, 1):
            self._add(recording.name, result)
            if sys.stderr.isatty():
                print(
                    f"\r\033[K{recording.name}: {number} of {len(recording.scenarios)}, {result.scenario}",
                    end="\r",
                    file=sys.stderr,
                    flush=True,
                )
        passed, failed, skipped = (now - then for now, then in zip(self._counts(), before, strict=True))
        print(
            f"{recording.name}: {passed} passed, {failed} failed, {skipped} skipped"
            f" ({time.monotonic() - begun:.0f} s)",
            file=sys.stderr,
            flush=True,
        )

    def _add(self, file: str, result: Result) -> None:
        if result.failure:
            self.failed += 1
            print(f"{file}: {result.scenario}, {result.failure}", flush=True)
        elif result.waits_for:
            self.skipped[result.waits_for].append(f"{file}/{result.scenario}")
        else:
            self.passed += 1

    def _counts(self) -> tuple[int, int, int]:
        return self.passed, self.failed, sum(map(len, self.skipped.values()))

    def print_end(self) -> None:
        """Print what the skipped scenarios wait for, then the numbers."""
        for reason, names in sorted(self.skipped.items()):
            print(f"skipped for {reason}: {' '.join(names)}")
        print("{} passed, {} failed, {} skipped".format(*self._counts()))


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # as Ctrl-C: what was started is stopped
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(STOPPED)
