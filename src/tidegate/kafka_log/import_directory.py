"""The directory of an imported record: its lock, the staging of new files, and the check for files of others."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.kafka_log.manifest import Manifest
from tidegate.usage.directory import lock_file, make_private_directory
from tidegate.usage.files import IMPORT_MANIFEST

__all__ = ["REJECTED", "STAGING", "check_directory", "finished_import", "staging", "written_to"]

STAGING, _LOCK, REJECTED = ".import", "import.lock", "import-rejected.txt"


@contextmanager
def written_to(out: Path) -> Iterator[None]:
    """Raise `ConfigError` where a file of the record cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write to {str(out)!r}: {error.strerror or error}", hint="give --out another directory"
        ) from error


@contextmanager
def staging(out: Path) -> Iterator[None]:
    """Create a directory for new files, and remove it at the end unless the manifest lists files to move from it."""
    shutil.rmtree(out / STAGING, ignore_errors=True)
    make_private_directory(out / STAGING)
    try:
        yield
    finally:
        if not Manifest.load(out).moves:
            shutil.rmtree(out / STAGING, ignore_errors=True)


@contextmanager
def finished_import(out: Path) -> Iterator[Manifest]:
    """Lock a directory against other imports, finish a killed import, and yield the manifest.

    Raises `ConfigError` while an import into it is under way.
    """
    lock = lock_file(out / _LOCK)
    if lock is None:
        raise ConfigError(
            f"another import into {str(out)!r} is running",
            hint="wait until it ends, then run the command again",
        )
    try:
        manifest = Manifest.load(out)
        manifest.finish(out)
        yield manifest
    finally:
        os.close(lock)


def check_directory(out: Path) -> None:
    """Refuse a directory with files that no import wrote, such as the spool of a broker."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{str(out)!r} is not a directory", hint="give --out another directory")
    others = {path.name for path in out.iterdir()} - {STAGING, _LOCK, REJECTED, "parquet", IMPORT_MANIFEST}
    others = {name for name in others if not name.startswith(".")}
    if others or ((out / "parquet").exists() and not (out / IMPORT_MANIFEST).exists()):
        raise ConfigError(
            f"{str(out)!r} contains files that `tidegate import` did not write",
            hint="give --out a new or empty directory, or one of an earlier import",
        )
