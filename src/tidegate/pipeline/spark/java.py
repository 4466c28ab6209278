"""Find the Java that Spark will run on, before Spark looks for it and prints a stack trace."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from tidegate.pipeline.errors import MissingJavaError

__all__ = ["OLDEST_JAVA", "java_major", "require_java"]

OLDEST_JAVA = 17  # Spark 4 says: Java 17 or later
_HINT = f"install Java {OLDEST_JAVA} or later (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"
_VERSION = re.compile(r'version "(?P<first>\d+)(?:\.(?P<second>\d+))?')
_ANSWER_SECONDS = 30


def require_java(environ: Mapping[str, str] = os.environ) -> str:
    """Return what the Java that Spark would start says of its version.

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
