"""Simulate with fresh seeds, or with one that failed: `make soak`."""

import argparse
import secrets
import tempfile
import time
from pathlib import Path

from tests.simulation.world import simulate

STEPS = 100_000


def main() -> None:
    """Run as many seeds as are asked for; the first violation ends it, and says how to see it again."""
    parser = argparse.ArgumentParser(prog="make soak ARGS=...", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many fresh seeds (default: 10)")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps with each (default: {STEPS})")
    args = parser.parse_args()
    seeds = [secrets.randbits(32) for _ in range(args.seeds)] if args.seed is None else [args.seed]
    for seed in seeds:
        print(f"seed {seed}:", end=" ", flush=True)
        begun_s = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            world = simulate(seed, args.steps, Path(directory))
        took_s = time.perf_counter() - begun_s
        print(
            f"{args.steps} steps, {world.auditor.seen['requests']} requests, {world.events} events, "
            f"{world.clock.ns / 1e9:.0f} s in {took_s:.0f} s ({args.steps / took_s:.0f} steps a second)",
            flush=True,
        )


if __name__ == "__main__":
    main()
