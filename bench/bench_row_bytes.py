"""Bytes a row of real usage records, column by column, and the time to read a row.

    python bench/bench_row_bytes.py DIR ... [--levels N ...]

DIR: a usage directory, best after `tidegate compact`. Files that a merge has superseded are left out.
Columns with less than 0.01 bytes a row are not shown.
--levels: also write the rows again as merged files at these levels of zstd, and read each in turns.
"""

import argparse
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq

from tidegate.usage.arrow import merge_files
from tidegate.usage.files import list_files

ROUNDS = 5
ROUNDS_OF_LEVELS = 15
LEAST_BYTES = 0.01


def measure(directory: Path) -> None:
    """Print what the files of a directory take."""
    files = list_files(directory)
    rows, by_column = 0, Counter()
    for path in files:
        metadata = pq.read_metadata(path)
        rows += metadata.num_rows
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                by_column[column.path_in_schema] += column.total_compressed_size
    seconds = min(_seconds(files) for _ in range(ROUNDS))
    total = sum(path.stat().st_size for path in files)
    row = f"{total / rows:.2f} bytes and {seconds / rows * 1e9:.0f} ns a row"
    print(f"{directory}: {rows:,} rows, {len(files)} files, {row}")
    for name, size in by_column.most_common():
        if size / rows >= LEAST_BYTES:
            print(f"  {name:24} {size / rows:6.2f}")


def _seconds(files: list[Path]) -> float:
    """Return the processor time of reading all columns on one core."""
    started = time.process_time()
    for path in files:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(1 << 17, use_threads=False):
                pass
    return time.process_time() - started


def compare_levels(directory: Path, levels: list[int]) -> None:
    """Print bytes and processor time to read of a row that is merged at each level, rounds in turns."""
    files = list_files(directory)
    with tempfile.TemporaryDirectory() as work:
        merged = {level: Path(work) / f"{level}.parquet" for level in levels}
        for level, path in merged.items():
            for _ in merge_files(files, path, level=level):
                pass
        taken = {level: [] for level in levels}
        for _ in range(ROUNDS_OF_LEVELS):
            for level, path in merged.items():
                taken[level].append(_seconds([path]))
        for level, path in merged.items():
            rows = pq.read_metadata(path).num_rows
            least, middle = (value / rows * 1e9 for value in (min(taken[level]), median(taken[level])))
            size = path.stat().st_size / rows
            print(
                f"  merged at level {level:2}: {size:5.2f} bytes, {least:.0f} ns a row to read, median {middle:.0f}"
            )


def main() -> None:
    """Measure each directory that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--levels", type=int, nargs="+", default=[], metavar="N")
    args = parser.parse_args()
    print(f"# python {' '.join(sys.argv)}; Python {platform.python_version()}, {platform.machine()}")
    for directory in args.directories:
        measure(directory)
        if args.levels:
            compare_levels(directory, args.levels)


if __name__ == "__main__":
    main()
