"""The file of a report: only its owner can read it, and it is written completely or not at all."""

import os
import tempfile
from pathlib import Path

from tidegate.pipeline.errors import OutputError

__all__ = ["check_page", "write_page"]


def check_page(path: Path, *, overwrite: bool) -> None:
    """Raise `OutputError` where a page cannot be written to `path`."""
    if os.path.isdir(path):  # unlike `Path.is_dir` also where it is too long
        raise OutputError(f"{str(path)!r} is a directory", hint="give the name of a file")
    if not overwrite and os.path.lexists(path):
        raise OutputError(f"{str(path)!r} is there already", hint="give another name, or --overwrite")
    if not os.path.isdir(path.parent):
        raise OutputError(
            f"cannot write to {str(path)!r}: there is no directory {str(path.parent)!r}",
            hint="make it, or give another name",
        )


def write_page(path: Path, text: str, *, overwrite: bool) -> None:
    """Write the page, mode 0600, in place of what was there. Raises `OutputError`."""
    check_page(path, overwrite=overwrite)
    new = None
    try:
        descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        with open(descriptor, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(new, path)
        else:
            os.link(new, path)  # fails where somebody else was first
    except FileExistsError:
        raise OutputError(
            f"{str(path)!r} is there already", hint="give another name, or --overwrite"
        ) from None
    except OSError as error:
        raise OutputError(
            f"cannot write to {str(path)!r}: {error.strerror or error}",
            hint="give --out a file in another directory",
        ) from error
    finally:
        if new is not None:
            Path(new).unlink(missing_ok=True)
