"""Which versions of the clients are pinned, read from where they are."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["PINNED", "kcat_version"]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def _python(name: str) -> str:
    return _found(rf"^{name}==(\S+)", ROOT / "constraints" / "python.txt")


def _node(name: str) -> str:
    lock = json.loads((HERE / "node" / "package-lock.json").read_text(encoding="utf-8"))
    version: str = lock["packages"][f"node_modules/{name}"]["version"]
    return version


def _go() -> str:
    return _found(r"^\tgithub.com/twmb/franz-go v(\S+)$", HERE / "go" / "go.mod")


def _kafka() -> str:
    return _found(
        r"<artifactId>kafka_2.13</artifactId>\s*<version>(.*)</version>", ROOT / "tests/java/pom.xml"
    )


def _found(pattern: str, path: Path) -> str:
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    assert match, f"no {pattern!r} in {path}"
    return match[1]


def kcat_version() -> str:
    """Return the version of the kcat that is installed; it is the system's, and not pinned."""
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    version, library = re.search(r"Version (\S+) .*librdkafka (\S+)", said).groups()
    return f"{version} (librdkafka {library})"


PINNED: Mapping[str, Callable[[], str]] = {
    **{name: (lambda name=name: _python(name)) for name in ("confluent-kafka", "kafka-python", "aiokafka")},
    **{name: (lambda name=name: _node(name)) for name in ("kafkajs", "@platformatic/kafka")},
    "franz-go": _go,
    "kafka": _kafka,
}
"""The clients whose versions are pinned, and what reads the version."""
