"""The Java that Spark runs on: found before Spark looks for it and prints a stack trace, and started quickly.

An archive file holds the classes that Spark loads. Java maps it and starts in half the time (decision 0082). Java
writes the archive when it ends, once for each version of Java, Spark and Tidegate. This happens at the second start: if
nothing is kept between starts, as in a container for one job, an archive would never be used. Java ignores an archive
of another Java, but crashes if an archive is damaged: its checksum is therefore in its name. It is in the user's cache
directory, which other users cannot read.
"""

import hashlib
import os
import re
import shutil
import subprocess
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pyspark

from tidegate import __version__
from tidegate.pipeline.errors import MissingJavaError

__all__ = ["OLDEST_JAVA", "ClassArchive", "java_major", "require_java"]

OLDEST_JAVA = 17  # Spark 4 says: Java 17 or later
_HINT = f"install Java {OLDEST_JAVA} or later (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"
_VERSION = re.compile(r'version "(?P<first>\d+)(?:\.(?P<second>\d+))?')
_ANSWER_SECONDS = 30
KEPT = 2
"""Archives that are kept, 170 MB each: those used last."""

_ROOM_BYTES = 1 << 30  # free space that is needed to make an archive
_LEFT_OVER_SECONDS = 3600  # an archive that is older than this will not be finished
_DIGEST_CHARACTERS = 16
_PLAIN_PATH = re.compile(r"[\w./+@-]+")  # other characters would have to be quoted for Spark
_SETTING = "spark.driver.extraJavaOptions"
_NEVER_FATAL = "-Xshare:auto -XX:+IgnoreUnrecognizedVMOptions"
_PIECE_BYTES = 1 << 20


def require_java(environ: Mapping[str, str] = os.environ) -> str:
    """Return the version text of the Java that Spark would start.

    Looks where Spark looks: `$JAVA_HOME/bin/java`, else `java` on the path.
    Raises `MissingJavaError` where there is none or it is too old.
    """
    command = _java_command(environ)
    text = _version_text(command)
    major = java_major(text)
    if major is None:
        raise MissingJavaError(f"cannot find the Java version of {command!r}", hint=_HINT)
    if major < OLDEST_JAVA:
        raise MissingJavaError(
            f"Spark needs Java {OLDEST_JAVA} or later, {command!r} is Java {major}", hint=_HINT
        )
    return text


def java_major(version_text: str) -> int | None:
    """Return the major version out of what `java -version` prints, None if there is none in it.

    >>> java_major('openjdk version "17.0.15" 2025-04-15'), java_major('java version "1.8.0_402"')
    (17, 8)
    """
    found = _VERSION.search(version_text)
    if found is None:
        return None
    first = int(found["first"])
    return int(found["second"] or 0) if first == 1 else first


def _java_command(environ: Mapping[str, str]) -> str:
    home = environ.get("JAVA_HOME")
    if home:
        command = os.path.join(home, "bin", "java")
        if not os.access(command, os.X_OK):
            raise MissingJavaError(f"JAVA_HOME is {home!r}, which contains no bin/java", hint=_HINT)
        return command
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    if found is None:
        raise MissingJavaError("Spark needs Java, but PATH contains no java", hint=_HINT)
    return found


def _version_text(command: str) -> str:
    try:
        answer = subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingJavaError(f"cannot run {command!r}: {error}", hint=_HINT) from error
    return answer.stderr + answer.stdout


class ClassArchive:
    """The class archive for a Java, identified by the output of `java -version`."""

    def __init__(self, java_version: str, environ: Mapping[str, str] = os.environ) -> None:
        spark = environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
        key = repr((java_version, pyspark.__version__, spark, __version__))
        home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        name = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:_DIGEST_CHARACTERS]
        self._directory = Path(home).absolute() / "tidegate" / "spark-classes"
        self._name = name
        self._being_made = self._directory / f"{name}.{os.getpid()}.part"
        self.is_made = False

    def in_settings(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return Spark's settings with the archive in use; where there is none, the second start makes one."""
        option, path = "", self._found()
        if _PLAIN_PATH.fullmatch(str(self._being_made)):
            if path is not None:
                option = f"-XX:SharedArchiveFile={path}"
            elif self._has_room() and self._was_started() and not self._is_tried():
                option = f"-XX:ArchiveClassesAtExit={self._being_made}"
                self._being_made.touch(mode=0o600)
                self.is_made = True
        if not option:
            return dict(settings)
        options = f"{settings.get(_SETTING, '')} {_NEVER_FATAL} {option}".strip()
        return {**settings, _SETTING: options}

    def install(self) -> None:
        """Move the archive that Java has written to its place, and remove unused archives. Java must have ended."""
        with suppress(OSError):
            if self.is_made and self._being_made.stat().st_size:
                checksum = _checksum(self._being_made)
                self._being_made.chmod(0o400)
                self._being_made.rename(self._directory / f"{self._name}-{checksum}.jsa")
        with suppress(OSError):
            found = sorted(self._directory.glob("*.jsa"), key=lambda path: -path.stat().st_mtime)
            begun = (path for path in self._directory.glob("*.part") if _is_left_over(path))
            for path in [*found[KEPT:], *begun]:
                path.unlink()

    def give_up(self) -> None:
        """Remove an incomplete archive, because Java was killed; an empty file remains as a mark of the attempt."""
        with suppress(OSError):
            if self.is_made:
                self._being_made.unlink(missing_ok=True)
                self._being_made.touch(mode=0o600)

    def _found(self) -> Path | None:
        """Return the archive if it is whole; a damaged one is removed."""
        with suppress(OSError):
            for path in self._directory.glob(f"{self._name}-*.jsa"):
                if path.stem == f"{self._name}-{_checksum(path)}":
                    os.utime(path)
                    return path
                path.unlink()
        return None

    def _was_started(self) -> bool:
        """Return whether a session was started before; leave a mark of this start."""
        mark = self._directory / f"{self._name}.started"
        was_started = mark.exists()
        with suppress(OSError):
            mark.touch(mode=0o600)
        return was_started

    def _is_tried(self) -> bool:
        """Return whether another process makes an archive, or has tried to within the hour."""
        return not all(map(_is_left_over, self._directory.glob(f"{self._name}.*.part")))

    def _has_room(self) -> bool:
        directory = self._directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.access(directory, os.W_OK | os.X_OK) and shutil.disk_usage(directory).free > _ROOM_BYTES
        except OSError:
            return False


def _checksum(path: Path) -> str:
    found = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            found = zlib.crc32(piece, found)
    return f"{found:08x}"


def _is_left_over(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _LEFT_OVER_SECONDS
