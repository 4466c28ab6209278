"""The frame of the command line: which command runs, and what errors turn into."""

import ctypes
import errno
import os
import re
import subprocess
import sys
import types

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate import __version__
from tidegate.cli import main as cli
from tidegate.errors import TidegateError, install_hint


def _command(run):
    """Return a command module called `probe` that does `run`."""
    module = types.ModuleType("tidegate.cli.probe")
    module.add_parser = lambda subparsers: subparsers.add_parser("probe")
    module.run = run
    return module


@pytest.fixture
def probe(monkeypatch):
    """Return a function that runs `tidegate probe` with the given body."""

    def run_probe(body):
        monkeypatch.setattr(cli, "COMMANDS", ("probe",))
        monkeypatch.setitem(sys.modules, "tidegate.cli.probe", _command(body))
        return cli.main(["probe"])

    return run_probe


def _raise(error):
    def run(args):
        raise error

    return run


def test_the_exit_code_is_the_commands(probe):
    """What `run` returns is what the shell sees."""
    assert probe(lambda args: 1) == 1


def test_an_error_is_one_line_and_a_hint(probe, capsys):
    """A `TidegateError` becomes `error:` and `hint:` on stderr, nothing on stdout, exit code 2."""
    assert probe(_raise(TidegateError("port must be positive, got -1", hint="leave it out"))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: port must be positive, got -1\nhint: leave it out\n"


def test_an_error_without_a_hint_is_one_line(probe, capsys):
    """No hint, no second line."""
    probe(_raise(TidegateError("no such file 'x'")))
    assert capsys.readouterr().err == "error: no such file 'x'\n"


def test_ctrl_c_is_130(probe, capsys):
    """An interrupt ends the command quietly, with the exit code a shell would report."""
    assert probe(_raise(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


def test_a_part_not_installed_is_named_with_its_extra(probe, capsys):
    """A missing pyspark is the installation's affair, and the hint mends it."""
    assert probe(_raise(ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql"))) == 2
    assert capsys.readouterr().err == (
        "error: this command needs the Python module 'pyspark', which is not installed\n"
        f"hint: {install_hint('pipeline')}\n"
    )


def test_a_module_of_ours_that_is_missing_is_not_hidden(probe):
    """Only parts that can be left out are reported as such."""
    with pytest.raises(ModuleNotFoundError, match=r"tidegate\.lost"):
        probe(_raise(ModuleNotFoundError("No module named 'tidegate.lost'", name="tidegate.lost")))


def test_without_a_command_the_help_is_printed(capsys):
    """`tidegate` alone helps rather than complains."""
    assert cli.main([]) == 0
    assert "usage: tidegate" in capsys.readouterr().out


def test_help_names_every_command(capsys):
    """Every command is in the top-level help, with a line on what it does."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    listed = capsys.readouterr().out.partition("commands:")[2].partition("examples:")[0]
    for command in cli.COMMANDS:
        assert re.search(rf"\n    {command} +\w", listed), command  # beside it, not on the next line


@pytest.mark.parametrize("command", [(), *((name,) for name in cli.COMMANDS)])
def test_help_fits_80_columns(command, capsys, monkeypatch):
    """A line that is folded by the terminal breaks examples that are pasted from it."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main([*command, "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_help_and_version_need_nothing_heavy():
    """`--version` and `--help` answer without the libraries that only some command needs."""
    code = (
        "import sys; from tidegate.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'asyncio', 'ctypes', 'importlib.abc', 'rich', 'yaml', 'pyspark', 'pyarrow', 'numba'}\n"
        "heavy |= {'confluent_kafka', 'cramjam', 'kafka'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


_TWO_COMMANDS = """\
import sys
from tidegate.cli.main import main
record, quotas = sys.argv[1:]
for arguments in (["usage", record], ["replay", record, "--quotas", quotas]):
    sys.argv[1:] = arguments
    assert main() == 0
assert "pandas" not in sys.modules
import pyarrow
assert len(pyarrow.table({"a": [1]}).to_pandas()) == 1
"""


def test_pandas_is_not_loaded(tmp_path):
    """A command over a record runs without pandas, and pyarrow still finds pandas for a conversion to it."""
    node = RecordingNode()
    node.start(START_MS)
    node.produce("alice", "c1", 10, START_MS)
    write_events(tmp_path / "usage", node.events)
    (tmp_path / "quotas.yaml").write_text(
        "version: 1\nquotas:\n  - user: {name: alice}\n    producer_byte_rate: 1\n"
    )
    command = [sys.executable, "-c", _TWO_COMMANDS, str(tmp_path / "usage"), str(tmp_path / "quotas.yaml")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


_EIGHT_THREADS = """\
import ctypes, threading
from tidegate.cli.record_reading import prepare_reading
prepare_reading()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.open_memstream.restype = ctypes.c_void_p
barrier = threading.Barrier(8)
def allocate():
    barrier.wait()
    libc.malloc(1000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
text, size = ctypes.c_char_p(), ctypes.c_size_t()
stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(text.value.count(b"<heap nr="))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc has arenas")
def test_threads_share_two_arenas():
    """The C library keeps two sets of free pieces, whatever the threads."""
    command = [sys.executable, "-c", _EIGHT_THREADS]
    arenas = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert 1 <= arenas <= 2


def test_version(capsys):
    """`--version` prints name and version."""
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"tidegate {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["--no-such-option"], "unrecognized argument '--no-such-option'", "see `tidegate --help`"),
        (["usgae", "x"], "argument COMMAND: invalid choice: 'usgae'", "did you mean 'usage'?"),
        (["usage", "x", "--jsn"], "unrecognized argument '--jsn'", "did you mean '--json'?"),
        (["gateway", "--upsteam", "x:1"], "unrecognized argument '--upsteam'", "did you mean '--upstream'?"),
        (["quotas", "plan", "--usge=x"], "unrecognized argument '--usge=x'", "did you mean '--usage'?"),
        (["usage", "--last", "1h"], "the following arguments are required: DIR", "see `tidegate usage --help`"),
        (["usage", "x", "--exlpain=3"], "unrecognized argument '--exlpain=3'", "did you mean '--explain'?"),
        (["report", "x", "--json"], "unrecognized argument '--json'", "see `tidegate report --help`"),
        (["usage", "x", "y\x1b[2J"], r"unrecognized argument 'y\x1b[2J'", "see `tidegate usage --help`"),
        (["usage"], "the following arguments are required: DIR", "see `tidegate usage --help`"),
        (["limits", "x", "--by", "usr"], "argument --by: invalid choice: 'usr'", "did you mean 'user'?"),
        (["usage", ""], "argument DIR: expected a path, got ''",
         "check for an empty variable; write . for the current directory"),
        (["import", "9999999999=x", "--out", "y"], "argument LOG: expected a whole number from 0 to 2147483647,",
         "see `tidegate import --help`"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_error_and_a_hint(capsys, arguments, error, hint):
    """As all errors are: argparse's page of usage would bury it."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    found, hinted = capsys.readouterr().err.splitlines()
    assert (found.startswith(f"error: {error}"), hinted.startswith(f"hint: {hint}")) == (True, True)


def test_what_an_error_leaves_half_done_ends_before_it_is_told(probe, capsys):
    """Or a bar that shows progress would fold the error, and be drawn over it."""

    def shown():
        try:
            yield 1
        finally:
            print("bar ends", file=sys.stderr)

    def run(args):
        return [_raise(TidegateError("damaged \x1b[2J"))(args) for _ in shown()]

    assert probe(run) == 2
    assert capsys.readouterr().err == "bar ends\nerror: damaged \\x1b[2J\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left"), "error: cannot write: No space left\nhint: free disk space"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "error: cannot use '/x': Permission denied\nhint: "),
    ],
)  # fmt: skip
def test_what_the_system_refuses_is_no_traceback(probe, capsys, error, said):
    """Where no command has said more about it."""
    assert probe(_raise(error)) == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_full_disk_below_the_output_is_told():
    """Of help, too."""
    with open("/dev/full", "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "tidegate", "--help"], check=False, stdout=stdout, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: cannot write: No space left on device\nhint: ")


def test_a_reader_that_goes_away_is_quiet():
    """`tidegate --help | head -0` says nothing about broken pipes."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "tidegate"], check=False, stdout=stdout, stderr=subprocess.PIPE
        )
    assert done.returncode == cli.EXIT_PIPE
    assert done.stderr == b""
