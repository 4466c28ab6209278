"""Read the usage files: every file is looked at before Spark is asked, so that a bad one is named.

Only names that the writer has finished are read (see `docs/usage-record.md`), with the schema given, never inferred.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import ConfigError
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.schemas import EVENTS
from tidegate.usage.arrow import arrow_schema
from tidegate.usage.files import in_hours
from tidegate.usage.readers import complete_files, list_files

__all__ = ["check_files", "find_all_files", "find_files", "read_events"]

_GLOB = re.compile(r"([\\{}\[\]*?])")  # what Hadoop reads as a pattern in a path
_ESCAPED = r"\\\1"
_HINT = "give the usage directory of `tidegate serve`"


def find_files(directory: Path) -> list[Path]:
    """Return the finished usage files under `directory`.

    Raises `UsageFilesError` where there is no such directory or nothing in it.
    """
    try:
        files = list_files(directory)
    except ConfigError as error:
        raise UsageFilesError(str(error), hint=_HINT) from error
    return _not_none(files, directory)


@contextmanager
def find_all_files(
    directory: Path, *, from_ms: int | None = None, to_ms: int | None = None
) -> Iterator[list[Path]]:
    """Give the usage files and copies of what lies in the spool, which are removed afterwards; errors likewise.

    from_ms, to_ms: only those of the hours in between; None: no end.
    """
    with ExitStack() as stack:
        try:
            files = stack.enter_context(complete_files(directory))
            if from_ms is not None or to_ms is not None:
                files = in_hours(files, from_ms=from_ms, to_ms=to_ms)
        except (ConfigError, OSError) as error:
            raise UsageFilesError(str(error), hint=_HINT) from error
        yield _not_none(
            files, directory, "in these hours" if from_ms is not None or to_ms is not None else ""
        )


def check_files(files: Sequence[Path]) -> int:
    """Read the footer of every file and return how many rows they hold in all.

    Raises `UsageFilesError` naming the first file that is no Parquet file or lacks a column.
    """
    return sum(_rows_in(path) for path in files)


def read_events(session: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Return the usage record out of `files`, columns as in `EVENTS`."""
    paths = [f"file:{_GLOB.sub(_ESCAPED, str(path.absolute()))}" for path in files]
    return session.read.schema(EVENTS).parquet(*paths).select(EVENTS.names)


def _not_none(files: list[Path], directory: Path, of_what: str = "") -> list[Path]:
    if not files:
        raise UsageFilesError(f"no usage files in {str(directory)!r} {of_what}".rstrip(), hint=_HINT)
    return files


def _rows_in(path: Path) -> int:
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow)
            rows: int = file.metadata.num_rows
            return rows
    except (pa.ArrowException, OSError) as error:
        raise UsageFilesError(
            f"{str(path)!r} is not a usable Parquet file: {_first_sentence(error)}",
            hint="move the file away, or fetch an undamaged copy of it, and run again",
        ) from error


def _check_columns(path: Path, found: pa.Schema) -> None:
    types = {field.name: field.type for field in found}
    for field in arrow_schema():
        if field.name not in types:
            raise UsageFilesError(
                f"{str(path)!r} has no column {field.name!r}: not a usage file of this version"
            )
        if types[field.name] != field.type:
            raise UsageFilesError(
                f"column {field.name!r} of {str(path)!r} is {str(types[field.name])!r}, expected {str(field.type)!r}"
            )


def _first_sentence(error: Exception) -> str:
    return str(error).splitlines()[0].partition(". ")[0].rstrip(".")
