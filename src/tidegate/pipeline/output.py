"""Where results are written: Parquet tables in a directory that is new, empty or ours.

A directory that holds our results has a marker file. It may be written again; a directory with anything else
in it may not, unless the user says so, and even then only our own tables in it are replaced.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame

from tidegate.pipeline.errors import OutputError

__all__ = ["MARKER", "check_output", "prepare_output", "write_table"]

MARKER = "tidegate-results.json"


def prepare_output(directory: Path, *, command: str, tables: Iterable[str], overwrite: bool) -> None:
    """Make `directory` ready for the tables of `command`, and mark it as ours.

    Raises `OutputError` where it is a file, cannot be made, or holds what is not ours and `overwrite` is not given.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_output(directory, overwrite=overwrite)
        content = {"command": command, "tables": sorted(tables)}
        (directory / MARKER).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write to {str(directory)!r}: {error.strerror or error}") from error


def write_table(table: DataFrame, directory: Path, name: str) -> Path:
    """Write `table` to `directory/name.parquet`, in place of what stood there, and return that path."""
    path = directory / f"{name}.parquet"
    table.write.mode("overwrite").parquet(f"file:{path.absolute()}")
    return path


def check_output(directory: Path, *, overwrite: bool) -> None:
    """Raise `OutputError` where `directory` holds what is not ours and `overwrite` is not given."""
    if overwrite or not directory.is_dir() or (directory / MARKER).is_file():
        return
    other = next(directory.iterdir(), None)
    if other is not None:
        raise OutputError(
            f"{str(directory)!r} is not empty and does not hold results of tidegate (found {other.name!r})",
            hint="give another directory, or --overwrite to write among what is there",
        )
