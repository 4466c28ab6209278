"""`tidegate import` in several processes: none is left, whatever ends first, and none imports what lies around."""

import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfoNotFoundError

import pytest
from tests.unit.kafka_log.samples import QUICK

from tidegate.kafka_log.workers import worker_processes

_TIDEGATE = Path(sys.executable).with_name("tidegate")
_TIMES = 40  # the sample's 3 MB: some seconds of work
_MODULES = ("struct", "json", "numpy", "pyarrow", "msgspec", "tidegate", "sitecustomize")


@pytest.fixture(scope="module")
def large_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log that takes a while."""
    path = tmp_path_factory.mktemp("logs") / "request.log"
    path.write_bytes(gzip.decompress(QUICK.read_bytes()) * _TIMES)
    return path


def _begin(log: Path, out: Path) -> "subprocess.Popen[str]":
    """Start an import in a process group of its own, with Ctrl-C as usual; return when its workers run."""
    process = subprocess.Popen(
        ["env", "--default-signal=INT", _TIDEGATE, "import", str(log), "--out", str(out), "--processes", "2"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    _wait_for(lambda: len(_workers_of(process.pid)) == 2)
    return process


def _workers_of(pid: int) -> list[int]:
    """Return the children that read lines."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"read_blocks" in Path(f"/proc/{child}/cmdline").read_bytes():
            found.append(int(child))
    return found


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_no_module_of_the_current_directory_is_imported(tmp_path: Path) -> None:
    """A `struct.py` that lies where the command is typed is nobody's business, in no process."""
    caught = tmp_path / "caught"
    for name in _MODULES:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(caught)!r}, 'a').write({name!r} + '\\n')\nraise SystemExit(9)\n"
        )
    done = subprocess.run(
        [_TIDEGATE, "import", str(QUICK), "--out", "out", "--processes", "2"],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert not caught.exists(), caught.read_text()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("imported 2,702 requests and 5 quota changes from 1 file, 3.2 MB")


_UNGUARDED = """
import sys
from tidegate import pipeline
print("runs once", __name__)
print(pipeline.import_request_log(sys.argv[1], out="out", processes=2).requests)
"""


@pytest.mark.parametrize("is_file", [True, False])
def test_a_script_without_a_guard(tmp_path: Path, is_file: bool) -> None:
    """The processes do not run the script of their caller again, be it a file or read from stdin."""
    (tmp_path / "script.py").write_text(_UNGUARDED)
    done = subprocess.run(
        [sys.executable, "script.py" if is_file else "-", str(QUICK)],
        input=_UNGUARDED, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs once __main__\n2702\n", "")


def test_an_error_of_a_worker_reaches_the_caller() -> None:
    """As it was raised; the worker goes on."""
    with worker_processes(1) as submit:
        with pytest.raises(ZoneInfoNotFoundError):
            submit("No/Zone", b"").result()
        assert submit("UTC", b"").result().requests == 0


def test_ctrl_c(large_log: Path, tmp_path: Path) -> None:
    """Exit code 130 without a traceback of anybody, no process left, nothing imported; then it can be done anew."""
    process = _begin(large_log, tmp_path / "out")
    workers = _workers_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    assert not any(_is_running(pid) for pid in workers)
    assert not list((tmp_path / "out").glob("parquet/**/*.parquet"))
    done = subprocess.run(
        [_TIDEGATE, "import", str(large_log), "--out", str(tmp_path / "out")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{2702 * _TIMES:,} requests" in done.stdout


_INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
from tidegate.kafka_log.workers import worker_processes

signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt():
    mine = Path(f"/proc/self/task/{main}/children")
    while not any(b"read_blocks" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in mine.read_text().split()):
        pass
    os.kill(os.getpid(), signal.SIGINT)

if __name__ == "__main__":
    main = threading.get_native_id()
    threading.Thread(target=interrupt).start()
    try:
        with worker_processes(2):
            while True:
                time.sleep(0.01)  # a signal that comes just before `signal.pause` would not end that
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_ctrl_c_that_another_thread_takes_while_workers_start(tmp_path: Path) -> None:
    """The worker that is being started is told all that it has to know, or it ends with a traceback of its own."""
    script = tmp_path / "script.py"
    script.write_text(_INTERRUPTED)
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (130, "")


def test_a_worker_that_is_killed(large_log: Path, tmp_path: Path) -> None:
    """One error in words, with a way on; the other worker ends too."""
    process = _begin(large_log, tmp_path / "out")
    workers = _workers_of(process.pid)
    os.kill(workers[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == (
        "error: a process that parsed lines ended unexpectedly, possibly out of memory\n"
        "hint: use one process: --processes 1, or processes=1 in Python\n"
    )
    _wait_for(lambda: not any(_is_running(pid) for pid in workers))


def test_workers_end_with_a_killed_import(large_log: Path, tmp_path: Path) -> None:
    """Nobody is left to tell them."""
    process = _begin(large_log, tmp_path / "out")
    workers = _workers_of(process.pid)
    process.kill()
    process.communicate(timeout=60)
    _wait_for(lambda: not any(_is_running(pid) for pid in workers))
