"""Bytes a row of real usage records, column by column, and the time to read a row.

    python bench/bench_row_bytes.py DIR ...

DIR: a usage directory, best after `tidegate compact`. Files that a merge has superseded are left out.
Columns with less than 0.01 bytes a row are not shown.
"""

import platform
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from tidegate.usage.files import list_files

ROUNDS = 5
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


def main() -> None:
    """Measure each directory that the command line names."""
    print(f"# python {' '.join(sys.argv)}; Python {platform.python_version()}, {platform.machine()}")
    for name in sys.argv[1:]:
        measure(Path(name))


if __name__ == "__main__":
    main()
