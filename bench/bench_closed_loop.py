"""Cost of a forecast: `tidegate replay` in both loops, in turns, in this process.

    python bench/bench_closed_loop.py [--rows N ...] [--turns N]

`enough` throttles one user in ten, as in `bench_replay.py`; under `tight`, a tenth of that, everybody waits,
and fetches are tried again and again. Each command is a process of its own, its start is in its time; on a busy machine
look at CPU time.
"""

import argparse
import tempfile
from pathlib import Path

from bench_growth import measure
from bench_replay import bench_files, bench_plan
from tidegate.config.quotas_file import QuotaEntry, QuotasFile
from tidegate.config.quotas_text import dump_quotas_file
from tidegate.pipeline.warm_up import CLOSED, OPEN, compile_replay_kernel
from tidegate.quota.admin.definitions import EntityParts

SHARES = {"enough": 1.0, "tight": 0.1}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000])
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    for loop in (OPEN, CLOSED):
        compile_replay_kernel(loop)
    with tempfile.TemporaryDirectory() as work:
        for rows in args.rows:
            directory = bench_files(rows, hot=False).record
            for name, share in SHARES.items():
                quotas = Path(work) / f"{name}.yaml"
                quotas.write_text(_quotas(share))
                for turn in range(args.turns):
                    loops = (OPEN, CLOSED) if turn % 2 == 0 else (CLOSED, OPEN)
                    for loop in loops:
                        command = ["replay", "--quotas", str(quotas), "--loop", loop]
                        measure(f"{rows:,} rows, {name}, {loop}", directory, command, None)


def _quotas(share: float) -> str:
    by_user: dict[EntityParts, dict[str, float]] = {}
    for record in bench_plan(share=share).records:
        by_user.setdefault(record.entity, {})[record.key] = record.value
    entries = (QuotaEntry(entity=entity, values=values) for entity, values in by_user.items())
    return dump_quotas_file(QuotasFile(entries=tuple(entries)))


if __name__ == "__main__":
    main()
