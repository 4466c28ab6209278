"""`tidegate demo`, as a newcomer runs it."""

import re
import signal
import subprocess
import sys
import time

import pytest
from tests.waiting import wait_until


def test_the_demo_does_what_it_claims(tmp_path):
    """All of it works in one go: exit code 0, every check holds, and the results lie where it says."""
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "demo", "--seconds", "6", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert re.search(r"(\d+) of \1 checks hold", done.stdout)
    assert (out / "plans" / "generous.yaml").is_file()
    assert (out / "usage-tables" / "usage_by_client").is_dir()
    assert (out / "replay-tables" / "replay_by_entity").is_dir()
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 20_000_000


@pytest.mark.usefixtures("signals")
def test_the_demo_can_be_interrupted(tmp_path):
    """Ctrl-C amid the flood ends broker and clients, without a traceback, with exit code 130."""
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-m", "tidegate", "demo", "--seconds", "60", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            deadline = time.monotonic() + 30
            while not list(out.glob("broker/bulk-*/*.log")):
                assert time.monotonic() < deadline
                assert demo.poll() is None
                time.sleep(0.1)
            demo.send_signal(signal.SIGINT)
            _, err = demo.communicate(timeout=60)
        finally:
            demo.kill()
    assert demo.returncode == 130
    assert "Traceback" not in err

    def is_left() -> bool:
        listed = subprocess.run(["ps", "-A", "-o", "args"], capture_output=True, text=True, check=True)
        return str(out) in listed.stdout

    wait_until(lambda: not is_left())  # the broker's writer may still write the last file
