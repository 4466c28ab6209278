"""Where results are written: Parquet tables in a directory that is new, empty or ours.

A directory that holds our results has a marker file. It may be written again; a directory with anything else
in it may not, unless the user says so, and even then only our own tables in it are replaced. A table is made beside
the one that is there and takes its place when it is complete; the marker says `complete` when all have.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tidegate.pipeline.errors import OutputError

__all__ = ["MARKER", "check_output", "finish_output", "prepare_output", "replaced_table", "write_table"]

MARKER = "tidegate-results.json"


def prepare_output(directory: Path, *, command: str, tables: Iterable[str], overwrite: bool) -> None:
    """Make `directory` ready for the tables of `command`, and mark it as ours.

    Raises `OutputError` where it is a file, cannot be made, or holds what is not ours and `overwrite` is not given.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_output(directory, overwrite=overwrite)
        before = _marked(directory)
        stale = sorted({*before.get("tables", ()), *before.get("stale", ())} - set(tables))
        _mark(directory, {"command": command, "tables": sorted(tables), "stale": stale, "complete": False})
    except OSError as error:
        raise OutputError(f"cannot write to {str(directory)!r}: {error.strerror or error}") from error


def finish_output(directory: Path) -> None:
    """Say that all tables are there; remove those of an earlier command that are not of this one."""
    marked = _marked(directory)
    for name in marked.pop("stale"):
        shutil.rmtree(directory / f"{name}.parquet", ignore_errors=True)
    _mark(directory, {**marked, "complete": True})


@contextmanager
def replaced_table(directory: Path, name: str) -> Iterator[Path]:
    """Give a path to write the Parquet file of a table to, which is then in place of what stood there.

    Raises `OutputError` where it cannot be written.
    """
    made = directory / f".{name}.parquet.new"
    shutil.rmtree(made, ignore_errors=True)
    try:
        made.mkdir(mode=0o700)
        yield made / "part-00000.parquet"
        _replace(made, directory / f"{name}.parquet")
    except OSError as error:
        raise OutputError(f"cannot write to {str(directory)!r}: {error.strerror or error}") from error


def write_table(table: DataFrame, directory: Path, name: str) -> Path:
    """Write `table` to `directory/name.parquet`, in place of what stood there, and return that path."""
    path, made = directory / f"{name}.parquet", directory / f".{name}.parquet.new"
    table.write.mode("overwrite").parquet(f"file:{made.absolute()}")
    _replace(made, path)
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


def _replace(made: Path, path: Path) -> None:
    """Put a complete table in its place; what stood there is gone then."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.is_dir():
        path.rename(old)
    elif path.exists():
        path.unlink()
    made.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _marked(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _mark(directory: Path, content: dict[str, Any]) -> None:
    new = directory / f".{MARKER}.new"
    new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    new.replace(directory / MARKER)
