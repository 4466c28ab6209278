"""Long runs that differ each time: nodes and groups on a virtual clock, hostile frames, kills."""

import argparse
import re
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.test_handshake_fuzz import run as fuzz_handshakes
from tests.fuzz.test_login_fuzz import run as fuzz_logins
from tests.gateway.hostility import fuzz as fuzz_gateway
from tests.kills.run import kill
from tests.simulation.auditor import ViolationError
from tests.simulation.groups.test_groups import run as simulate_groups
from tests.simulation.world import simulate

STEPS = 100_000
KILLS = 100
GROUP_STEPS = 1_000_000
LOGIN_FRAMES = 1_000_000
GATEWAY_FRAMES = 1_000_000
FRAMES_FOR_A_HANDSHAKE_STEP = 5
_SHOWN = re.compile("login|expired|connections|established|answered")
_EXAMPLES = """\
examples:
  make soak                                        all parts, about half an hour
  make soak ARGS='simulation'                      10^6 steps: ten fresh seeds
  make soak ARGS='simulation --seed 5'             one seed again, step by step the same
  make soak ARGS='groups'                          10^6 steps of consumer groups: joins, crashes, restarts
  make soak ARGS='logins'                          10^6 frames of clients that log in, or do not; TLS handshakes
  make soak ARGS='gateway'                         10^6 hostile requests and as hostile responses at a gateway
  make soak ARGS='kills --kills 20 --seed 7'       20 kills; a seed repeats what is done, not what it meets
  make soak ARGS='kills --nodes 3'                 three brokers in the process

Exit code 1: something was lost, is there twice, or is otherwise wrong; it is said what, and how to see it again.
"""


def main() -> int:
    """Run one part or all; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="make soak ARGS=...",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", title="parts", metavar="PART")
    _add_simulation(parts.add_parser("simulation", help="a node on a virtual clock, from seeds"))
    _add_groups(parts.add_parser("groups", help="consumer groups on a virtual clock, from seeds"))
    _add_logins(parts.add_parser("logins", help="any frames at a listener with logins, from seeds"))
    _add_gateway(
        parts.add_parser("gateway", help="hostile frames at a gateway, from clients and from its broker")
    )
    _add_kills(parts.add_parser("kills", help="`kill -9` of a broker under load, quotas changing"))
    chosen = parser.parse_args()
    every = [chosen] if chosen.part else [parser.parse_args([part]) for part in parts.choices]
    try:
        for options in every:
            options.run(options)
    except ViolationError as error:
        print("", error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    return 0


def _add_simulation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=10, help="how many fresh seeds (default: 10)")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps with each (default: {STEPS})")
    parser.set_defaults(run=_simulate)


def _add_groups(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=GROUP_STEPS, help=f"how many (default: {GROUP_STEPS})")
    parser.add_argument("--seed", type=int, help="that of the first world (default: any)")
    parser.set_defaults(run=_simulate_groups)


def _add_logins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--frames", type=int, default=LOGIN_FRAMES, help=f"how many (default: {LOGIN_FRAMES})"
    )
    parser.add_argument("--seed", type=int, help="this one (default: any)")
    parser.set_defaults(run=_log_in)


def _add_gateway(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--frames", type=int, default=GATEWAY_FRAMES, help=f"how many requests (default: {GATEWAY_FRAMES})"
    )
    parser.add_argument("--seed", type=int, help="that of the frames (default: any)")
    parser.set_defaults(run=_fuzz_gateway)


def _add_kills(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=KILLS, help=f"how many (default: {KILLS})")
    parser.add_argument("--seed", type=int, help="what is done at random (default: any)")
    parser.add_argument("--nodes", type=int, help="brokers in the process (default: one, now and then three)")
    parser.add_argument(
        "--data", type=Path, help="where data and log are made, and left if something is wrong"
    )
    parser.set_defaults(run=_kill)


def _simulate(options: argparse.Namespace) -> None:
    """Simulate; the first violation ends it."""
    seeds = [secrets.randbits(32) for _ in range(options.seeds)] if options.seed is None else [options.seed]
    for seed in seeds:
        print(f"seed {seed}:", end=" ", flush=True)
        begun_s = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            world = simulate(seed, options.steps, Path(directory))
        took_s = time.perf_counter() - begun_s
        print(
            f"{options.steps} steps, {world.auditor.seen['requests']} requests, {world.events} events, "
            f"{world.clock.ns / 1e9:.0f} s in {took_s:.0f} s ({options.steps / took_s:.0f} steps a second)",
            flush=True,
        )


def _simulate_groups(options: argparse.Namespace) -> None:
    """Simulate groups; the first thing that is wrong ends it."""
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}:", end=" ", flush=True)
    begun_s = time.perf_counter()
    try:
        counts = simulate_groups(seed, options.steps)
    except AssertionError as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        raise ViolationError(f"{notes} make test ARGS=tests/simulation/groups: {error}") from error
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{shown} in {time.perf_counter() - begun_s:.0f} s", flush=True)


def _log_in(options: argparse.Namespace) -> None:
    """Fuzz logins, and TLS handshakes; the first thing that is wrong ends it."""
    seed = secrets.randbits(32) if options.seed is None else options.seed
    steps = options.frames // FRAMES_FOR_A_HANDSHAKE_STEP
    for what, fuzz, count in (
        ("frames", fuzz_logins, options.frames),
        ("steps of TLS", fuzz_handshakes, steps),
    ):
        print(f"seed {seed}:", end=" ", flush=True)
        begun_s = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            try:
                counts = fuzz(seed, count, Path(directory))
            except AssertionError as error:
                raise ViolationError(
                    f"make soak ARGS='logins --frames {options.frames} --seed {seed}': {error}"
                ) from error
        shown = ", ".join(f"{number} {name}" for name, number in counts.items() if _SHOWN.search(name))
        print(f"{count} {what} in {time.perf_counter() - begun_s:.0f} s: {shown}", flush=True)


def _fuzz_gateway(options: argparse.Namespace) -> None:
    """Send hostile frames through a gateway; the first thing that is wrong ends it."""
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}:", end=" ", flush=True)
    begun_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        try:
            counts = fuzz_gateway(seed, options.frames, Path(directory))
        except AssertionError as error:
            again = f"make soak ARGS='gateway --frames {options.frames} --seed {seed}'"
            raise ViolationError(f"{again}: {error}") from error
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{options.frames} frames in {time.perf_counter() - begun_s:.0f} s: {shown}", flush=True)


def _kill(options: argparse.Namespace) -> None:
    """Kill; the first violation ends it."""
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"{options.kills} kills, seed {seed}", flush=True)
    begun_s = time.perf_counter()

    def say(line: str) -> None:
        print(f"{time.perf_counter() - begun_s:6.0f} s: {line}", flush=True)

    tallies = kill(options.kills, seed, nodes=options.nodes, data=options.data, say=say)
    names = ("kills", "acknowledged", "rows", "quotas", "settings", "topics", "positions")
    kills, records, rows, quotas, settings, topics, positions = (
        sum(getattr(tally, name) for tally in tallies) for name in names
    )
    say(
        f"{kills} kills: {records:,} acknowledged records are there, in order, none twice of an idempotent producer; "
        f"{quotas} changes of quotas, {settings} of settings, {topics} of topics and {positions} positions are kept, "
        f"{sum(tally.unacknowledged_in_force for tally in tallies)} unacknowledged ones whole; "
        f"{sum(tally.expired for tally in tallies):,} records were deleted by retention; "
        f"the usage record has each of {rows:,} rows once; "
        f"the slowest start took {max(tally.longest_start_s for tally in tallies):.1f} s, "
        f"the group shared the partitions again after {max(tally.longest_settling_s for tally in tallies):.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
