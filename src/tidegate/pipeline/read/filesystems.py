"""Filesystems by URI: those of Arrow (`s3`, `gs`, `abfs`, `hdfs`), else those of fsspec where it is installed.

Driver and executors open them alike, each with the credentials that its own environment has.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tidegate.config.locations import Location, Uri, location
from tidegate.errors import ConfigError
from tidegate.pipeline.errors import FilesystemError

__all__ = ["DAMAGE", "Place", "hint_of", "opened_parquet", "place_of", "reason_of", "table_format_of"]

DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Errors of Arrow for a file that is damaged or cannot be read."""

_ARROWS = frozenset({"s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs"})
_SAME = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names
_HADOOPS = frozenset({"hdfs", "viewfs"})
_GOOGLES = frozenset({"gs", "gcs"})
_NO_CREDENTIALS = ("access_denied", "forbidden", "credential", "authenticat", "http status 403")
_WITHOUT_DIRECTORIES = frozenset({"s3", "gcs"})  # a name with slashes is all that it takes
_LONGEST_REASON = 200
_RETRIES_S = 30  # of Google's client, which otherwise goes on for 15 minutes


class Place:
    """A directory or a file of a filesystem: where it is written `uri`, the filesystem calls it `path`."""

    def __init__(self, uri: Uri) -> None:
        self.uri = uri
        scheme = uri.base.partition("://")[0]
        if _SAME.get(scheme, scheme) in _ARROWS:
            self.filesystem, root = _arrows(uri.base, uri.query)
            below = unquote(uri.path)
        else:
            self.filesystem, root = _fsspecs(uri.base)
            below = uri.path
        self.path = (root.rstrip("/") + below).rstrip("/") or "/"

    def info(self, path: str | None = None) -> fs.FileInfo:
        """Return what is there, or at another `path` of the filesystem."""
        with _reasons_of(self.uri):
            return self.filesystem.get_file_info(self.path if path is None else path)

    def below(self, *, recursive: bool) -> list[fs.FileInfo]:
        """Return what is in the directory; nothing where there is none."""
        selector = fs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        with _reasons_of(self.uri):
            found: list[fs.FileInfo] = self.filesystem.get_file_info(selector)
        return found

    def read(self) -> bytes | None:
        """Return what a file holds; None: there is none."""
        with _reasons_of(self.uri):
            try:
                with self.filesystem.open_input_file(self.path) as file:
                    found: bytes = file.read()
            except FileNotFoundError:
                return None
        return found

    @contextmanager
    def written(self) -> Iterator[pa.NativeFile]:
        """Open the file for writing; create missing directories if the filesystem has directories."""
        with _reasons_of(self.uri):
            self.make_parent()
            with self.filesystem.open_output_stream(self.path) as file:
                yield file

    def make_parent(self) -> None:
        """Create the directory of the file if the filesystem has directories."""
        if self.filesystem.type_name not in _WITHOUT_DIRECTORIES:
            self.filesystem.create_dir(self.path.rpartition("/")[0], recursive=True)

    def write(self, data: bytes) -> None:
        """Write the file in one piece."""
        with self.written() as file:
            file.write(data)


def table_format_of(directory: Location) -> str | None:
    """Return "Delta Lake" or "Apache Iceberg" if `directory` is such a table: not all of its Parquet files count."""
    if isinstance(directory, Path):
        is_delta = (directory / "_delta_log").is_dir()
        is_iceberg = any(directory.glob("metadata/*.metadata.json"))
    else:
        is_delta = bool(place_of(directory / "_delta_log").below(recursive=False))
        metadata = place_of(directory / "metadata").below(recursive=False)
        is_iceberg = any(info.base_name.endswith(".metadata.json") for info in metadata)
    return "Delta Lake" if is_delta else "Apache Iceberg" if is_iceberg else None


def place_of(uri: Uri) -> Place:
    """Return the place of `uri`. Raises `FilesystemError` where nothing here can open such a one."""
    with _reasons_of(uri):
        return Place(uri)


@contextmanager
def opened_parquet(name: str, *, read_dictionary: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open the Parquet file of a path or URI, whose pages are compared with their checksums, if it has any.

    Raises what Arrow raises, one of `DAMAGE`; of what only a URI has, `FilesystemError`.
    """
    found = location(name)
    options = {"read_dictionary": list(read_dictionary), "page_checksum_verification": True}
    if isinstance(found, Path):
        with pa.OSFile(str(found)) as opened, pq.ParquetFile(opened, **options) as file:
            yield file
        return
    place = place_of(found)
    try:
        opened = place.filesystem.open_input_file(place.path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FilesystemError(
            f"cannot read {name!r}: {reason_of(error)}", hint=hint_of(found, error)
        ) from error
    with opened, pq.ParquetFile(opened, pre_buffer=True, **options) as file:
        yield file


@contextmanager
def _reasons_of(uri: Uri) -> Iterator[None]:
    """Raise what a filesystem raises as `FilesystemError`, with the URI and the reason in a line."""
    try:
        yield
    except ConfigError:
        raise
    except (pa.ArrowException, OSError, ValueError, ImportError, NotImplementedError) as error:
        raise FilesystemError(
            f"cannot use {str(uri)!r}: {reason_of(error)}", hint=hint_of(uri, error)
        ) from error


def reason_of(error: BaseException) -> str:
    """Return the first line of what a filesystem says."""
    said = str(error).strip() or type(error).__name__
    return said.splitlines()[0][:_LONGEST_REASON]


@functools.cache
def _arrows(base: str, query: str) -> tuple[fs.FileSystem, str]:
    """Return one of Arrow's filesystems, and how the paths of its files begin."""
    scheme, _, authority = base.partition("://")
    if scheme in _GOOGLES and "retry_limit_seconds=" not in query:
        query = "&".join(filter(None, (query, f"retry_limit_seconds={_RETRIES_S}")))
    filesystem, path = fs.FileSystem.from_uri(
        f"{_SAME.get(scheme, scheme)}://{authority}/{'?' if query else ''}{query}"
    )
    return filesystem, path


@functools.cache
def _fsspecs(base: str) -> tuple[fs.FileSystem, str]:
    """Return one of fsspec's, likewise."""
    import fsspec  # type: ignore[import-not-found,unused-ignore]  # of the user's, if at all

    filesystem, path = fsspec.core.url_to_fs(base)
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path


def hint_of(uri: Uri, error: BaseException) -> str | None:
    """Return a hint for an error of a filesystem; None: there is none."""
    scheme = uri.base.partition("://")[0]
    if isinstance(error, ImportError):
        missing = (
            "fsspec, and a library that fsspec names" if error.name == "fsspec" else error.name or "a library"
        )
        return f"{scheme}:// needs {missing}; install it, also for executors"
    if scheme in _HADOOPS and ("libhdfs" in str(error) or "libjvm" in str(error)):
        return (
            f"{scheme}:// needs Hadoop's libhdfs and Java: set HADOOP_HOME, JAVA_HOME and CLASSPATH, "
            "or use webhdfs://"
        )
    if "without" in str(error) and "support" in str(error):
        return f"this pyarrow was built without {scheme}://; install pyarrow from PyPI, which supports it"
    if "Protocol not known" in str(error):
        return "give a path, or a URI that begins with s3, gs, abfs, hdfs or a scheme of fsspec"
    if any(word in str(error).lower() for word in _NO_CREDENTIALS):
        return "set the credentials in the environment of each process; see docs/clusters.md"
    return None
