"""Replay what Kafka's command line tools printed (`tests/vectors/cli`) with `tidegate configs`, and say what differs.

A file is a list of commands in order, for a cluster without quotas and SCRAM users: one that has some is refused. What
a file leaves is removed after it. Compared are the exit code, the lines of stdout in any order, and the first line of
stderr. Commands of other tools than kafka-configs are not covered, and counted apart.
"""

import argparse
import asyncio
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2] / "src")
)  # as a program, only this directory is there

from tidegate.cli.main import main as tidegate
from tidegate.client import Admin, ConfigChange, ScramChange, load_client_settings
from tidegate.errors import TidegateError
from tidegate.quota.admin.definitions import Alteration

__all__ = ["Printed", "main", "replay"]

PASSED, FAILED, UNUSABLE = 0, 1, 2
COVERED = "kafka-configs"
UNREACHABLE = "127.0.0.1:1"
CONFIG_FILE = "producer_byte_rate=2222\nconsumer_byte_rate=3333\n"
SETTLE_S = 5.0
"""How long a change may take to reach the broker that is asked, in a real Kafka."""
_BROKER, _DELETE = 4, 1  # Kafka's numbers of a resource and an operation
_CHANGED = (2, 3)  # the sources of settings that were changed: of one broker, of all
_EXAMPLES = """\
examples:
  python tests/vectors/cli.py --bootstrap 127.0.0.1:9092 tests/vectors/cli/quotas.json tests/vectors/cli/errors.json

The last line is 'N passed, N failed', counted in commands. The recordings are of one broker, with node id 1.
exit code: 0 nothing failed; 1 a command failed; 2 wrong usage, or a file or cluster that cannot be used
"""


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command did: exit code, lines of stdout in any order, first line of stderr."""

    exit_code: int
    lines: tuple[str, ...]
    error: str

    @classmethod
    def of(cls, exit_code: int, stdout: str, stderr: str) -> "Printed":
        """Return what is compared of a command's output."""
        return cls(exit_code, tuple(sorted(stdout.splitlines())), stderr.partition("\n")[0])


Run = Callable[[list[str]], Printed]


def run_process(arguments: list[str]) -> Printed:
    """Run `tidegate configs` in a process of its own."""
    command = [sys.executable, "-m", "tidegate", "configs", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return Printed.of(done.returncode, done.stdout, done.stderr)


def run_here(arguments: list[str]) -> Printed:
    """Run `tidegate configs` in this process."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = tidegate(["configs", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Printed.of(code, out.getvalue(), errors.getvalue())


def replay(
    commands: list[dict[str, Any]], bootstrap: str, run: Run = run_process
) -> Iterator[tuple[str, str | None]]:
    """Run the commands of a file, in order; yield each with what differs, None where nothing does."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.write(CONFIG_FILE)
        file.flush()
        places = {"{bootstrap}": bootstrap, "{unreachable}": UNREACHABLE, "{file}": file.name}
        for command in commands:
            if _tool(command) == COVERED:
                arguments = [_filled(each, places) for each in command["argv"]]
                texts = (_filled(command[name], places) for name in ("stdout", "stderr"))
                expected = Printed.of(command["exit_code"], *texts)
                yield " ".join(command["argv"]), _difference(arguments, expected, run)


def _tool(command: dict[str, Any]) -> str:
    return str(command.get("tool", "another tool"))


def _filled(text: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(name, value)
    return text


def _difference(arguments: list[str], expected: Printed, run: Run) -> str | None:
    """Return how a command differs from `expected`. One that changes nothing is run until it does not, for a while."""
    end = time.monotonic() + SETTLE_S
    while (found := run(arguments)) != expected:
        changed_something = "--alter" in arguments and found.exit_code == 0
        if changed_something or time.monotonic() > end:
            return f"expected {expected}, got {found}"
        time.sleep(0.05)
    return None


async def _leftovers(admin: Admin) -> str | None:
    """Return what a cluster holds that an empty one does not."""
    if await admin.describe_client_quotas():
        return "the cluster has client quotas, expected none"
    if await admin.describe_scram_users():
        return "the cluster has SCRAM users, expected none"
    return None


async def _changed_settings(admin: Admin) -> set[tuple[str, str]]:
    """Return the settings that were changed, each with its broker; "" for all brokers."""
    await admin.cluster.refresh()
    found = set()
    for name in ("", *map(str, admin.cluster.node_ids)):
        entries = await admin.describe_configs(_BROKER, name, node_id=int(name) if name else None)
        source = _CHANGED[0] if name else _CHANGED[1]
        found |= {(name, entry.name) for entry in entries if entry.source == source}
    return found


async def _clean(admin: Admin, settings_before: set[tuple[str, str]]) -> None:
    """Remove quotas, SCRAM users and changed settings, and wait until they are gone."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        quotas = await admin.describe_client_quotas()
        users = await admin.describe_scram_users()
        changed = await _changed_settings(admin) - settings_before
        if not quotas and not users and not changed:
            return
        if quotas:
            removals = [
                Alteration(entity=entity, ops=tuple((key, None) for key in values))
                for entity, values in quotas
            ]
            await admin.alter_client_quotas(removals)
        await admin.alter_scram_users(
            [
                ScramChange(user=user, mechanism=mechanism)
                for user, found in users.items()
                for mechanism in (found if isinstance(found, dict) else ())
            ]
        )
        for broker, name in changed:
            change = ConfigChange(name=name, value=None, operation=_DELETE)
            await admin.alter_configs(_BROKER, broker, [change], node_id=int(broker) if broker else None)
        await asyncio.sleep(0.1)


@contextlib.contextmanager
def _empty(bootstrap: str) -> Iterator[None]:
    """Check that a cluster is empty, and empty it again in the end. Raises `TidegateError`."""

    async def look() -> set[tuple[str, str]]:
        async with Admin(load_client_settings(bootstrap)) as admin:
            problem = await _leftovers(admin)
            if problem:
                raise TidegateError(problem, hint="use a cluster that has nothing to lose")
            return await _changed_settings(admin)

    async def clean() -> None:
        async with Admin(load_client_settings(bootstrap)) as admin:
            await _clean(admin, before)

    before = asyncio.run(look())
    try:
        yield
    finally:
        asyncio.run(clean())


def main(arguments: list[str] | None = None) -> int:
    """Replay the files that the command line names and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="cli.py",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bootstrap", metavar="HOST:PORT", required=True, help="a cluster that is empty")
    parser.add_argument(
        "--in-process", action="store_true", help="run all commands in this process: ten times as fast"
    )
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path, help="a file of recordings")
    options = parser.parse_args(arguments)
    run = run_here if options.in_process else run_process
    counts: Counter[str] = Counter()
    not_covered: Counter[str] = Counter()
    try:
        for path in options.files:
            commands = json.loads(path.read_text(encoding="utf-8"))["commands"]
            not_covered.update(tool for tool in map(_tool, commands) if tool != COVERED)
            with _empty(options.bootstrap):
                for command, difference in replay(commands, options.bootstrap, run):
                    counts["failed" if difference else "passed"] += 1
                    if difference:
                        print(f"{path.name}: {command}\n  {difference}", flush=True)
    except (OSError, ValueError, KeyError, TidegateError) as error:
        print(f"error: {path}: {error}", file=sys.stderr)
        return UNUSABLE
    for tool, number in sorted(not_covered.items()):
        print(f"not covered: {number} commands of {tool}")
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return FAILED if counts["failed"] else PASSED


if __name__ == "__main__":
    sys.exit(main())
