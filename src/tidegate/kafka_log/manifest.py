"""The manifest of an import directory, `import.json`: imported files, and the moves that finish a killed import.

A file is identified by the digest of its content, not by its name: a renamed or compressed file is the same file, and
of a file that has grown only the new part is imported. New Parquet files are written beside the record. The manifest is
then saved with the place of each, and only then are they moved. The next import finishes the moves of a killed one.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigError
from tidegate.usage.directory import make_private_directory, sync_directory, write_private_file
from tidegate.usage.files import IMPORT_MANIFEST

__all__ = ["HEAD_BYTES", "ImportedFile", "Manifest"]

HEAD_BYTES = 4096
"""By the digest of so many bytes files are found that may be the same."""

_MANIFEST_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFile:
    """An imported file: digests of its head and of the `size` bytes (uncompressed) that were imported."""

    node_id: int
    name: str
    head: str
    digest: str
    size: int


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The files imported so far, what is not exact in their rows, and the changes that are not finished.

    topics: numbers of partitions by node and topic; topic_names: names of topics by id; from_ms, to_ms: the range of
    the requests that were imported, None: no limit.
    """

    files: list[ImportedFile] = field(default_factory=list)
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    topic_names: dict[str, str] = field(default_factory=dict)
    estimated_fetches: int = 0
    unpriced: int = 0
    from_ms: int | None = None
    to_ms: int | None = None
    moves: list[tuple[str, str, list[str]]] = field(default_factory=list)

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """Read the manifest of a directory, an empty one where nothing was imported. Raises `ConfigError`."""
        path = directory / IMPORT_MANIFEST
        try:
            with path.open("rb") as file:
                found: dict[str, Any] = json.loads(file.read(_MANIFEST_BYTES_MAX))
            files = [ImportedFile(**entry) for entry in found.pop("files")]
            for name in ("from_ms", "to_ms"):
                if not isinstance(found.get(name), int | None):
                    raise ValueError(f"{name} is {found[name]!r}, expected a time in ms or null")
            return cls(files=files, **found)
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{str(path)!r} is not a valid import manifest: {error}",
                hint="use an empty directory, or one that `tidegate import` wrote",
            ) from None

    def save(self, directory: Path) -> None:
        """Write the manifest, in place of the existing one."""
        write_private_file(directory / IMPORT_MANIFEST, json.dumps(asdict(self), indent=1).encode())

    def files_that_begin_like(self, node_id: int, head: str) -> list[ImportedFile]:
        """Return the files of a node that may begin like one with `head`, the longest first."""
        found = [file for file in self.files
                 if file.node_id == node_id and (file.head == head or file.size < HEAD_BYTES)]  # fmt: skip
        return sorted(found, key=lambda file: -file.size)

    def finish(self, directory: Path) -> None:
        """Move files that are not yet in their places in the manifest, and delete the files that they supersede."""
        if not self.moves:
            return
        for made, place, superseded in self.moves:
            target = directory / place
            if (directory / made).exists():
                make_private_directory(target.parent)
                os.replace(directory / made, target)
            for name in superseded:
                if name != place:
                    (directory / name).unlink(missing_ok=True)
            sync_directory(target.parent)
        self.moves = []
        self.save(directory)
