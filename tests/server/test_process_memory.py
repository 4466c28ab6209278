"""How much memory the process may take: whatever limits it, the least counts."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.server.process_memory import process_memory_bytes

MIB = 1 << 20


def write(path: Path, text: str) -> None:
    """Write a file of the system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "path"),
    [
        ("0::/", "memory.max"),
        ("0::/system.slice/tidegate.service", "system.slice/tidegate.service/memory.max"),
        ("0::/system.slice/tidegate.service", "system.slice/memory.max"),
        ("0::/not/mounted/here", "memory.max"),
        ("4:cpu,memory:/docker/abc\n1:name=systemd:/x", "memory/docker/abc/memory.limit_in_bytes"),
        ("4:memory:/docker/not-mounted-here", "memory/memory.limit_in_bytes"),
    ],
)
def test_a_control_group_counts(tmp_path: Path, groups: str, path: str) -> None:
    """That of the process, or one above it."""
    write(tmp_path / "proc/self/cgroup", groups + "\n")
    machine = process_memory_bytes(tmp_path)
    assert 64 * MIB < machine < 2**50
    write(tmp_path / "sys/fs/cgroup" / path, f"{50 * MIB}\n")
    assert process_memory_bytes(tmp_path) == 50 * MIB
    write(tmp_path / "sys/fs/cgroup" / path, "max\n")
    assert process_memory_bytes(tmp_path) == machine


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    """Nothing there is no limit."""
    assert process_memory_bytes(tmp_path) >= process_memory_bytes()


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_the_limits_of_the_process_count(kind: int) -> None:
    """`ulimit -v`, `ulimit -d`."""
    program = (
        f"import resource; resource.setrlimit({kind}, ({800 * MIB}, {800 * MIB}));"
        "from tidegate.server.process_memory import process_memory_bytes; print(process_memory_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 800 * MIB
