"""`tidegate settings`: what was changed while a broker ran is listed and reset without a connection."""

import fcntl
import io
import json
import os

import pytest

from tidegate.cli.main import main
from tidegate.storage.metadata.store import MetadataStore

CHANGED = {
    "": {"max.connections.per.ip.overrides": "127.0.0.1:0", "max.connections": "5"},
    "1": {"max.connections": "0", "listener.name.tls.ssl.keystore.password": "geheim"},
}


@pytest.fixture
def data(tmp_path):
    """Return the data directory of a stopped broker with changed settings."""
    store = MetadataStore(tmp_path / "tidegate.db")
    for node, changes in CHANGED.items():
        store.change_settings(node, changes)
    store.close()
    return tmp_path


def stored(data):
    """Return what is stored."""
    store = MetadataStore(data / "tidegate.db")
    try:
        return {(name, node): value for node, name, value in store.load_settings()}
    finally:
        store.close()


def test_they_are_listed(data, capsys):
    """By name and node; a password is hidden."""
    assert main(["settings", str(data)]) == 0
    assert capsys.readouterr().out == (
        "setting                                  node  value\n"
        "listener.name.tls.ssl.keystore.password  1     [hidden]\n"
        "max.connections                          1     0\n"
        "max.connections                          all   5\n"
        "max.connections.per.ip.overrides         all   127.0.0.1:0\n"
    )
    assert main(["settings", str(data), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"][1] == {"name": "max.connections", "node": "1", "value": "0"}


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (["--reset", "max.connections"], [("max.connections", ""), ("max.connections", "1")]),
        (["--reset", "max.connections@1"], [("max.connections", "1")]),
        (["--reset", "max.connections@all"], [("max.connections", "")]),
        (
            ["--reset", "max.connections@1", "--reset", "max.connections.per.ip.overrides"],
            [("max.connections", "1"), ("max.connections.per.ip.overrides", "")],
        ),
        (["--reset-all"], [(name, node) for node in CHANGED for name in CHANGED[node]]),
    ],
)
def test_they_are_reset(data, capsys, options, gone):
    """Those that are named, and no others; each is printed with the value that it had."""
    before = stored(data)
    assert main(["settings", str(data), *options, "--yes"]) == 0
    assert stored(data) == {key: value for key, value in before.items() if key not in gone}
    out = capsys.readouterr().out
    assert all(name in out for name, _ in gone)
    assert out.endswith(f"settings reset: {len(gone)}; the broker uses its configuration at the next start\n")


@pytest.mark.parametrize(
    ("answer", "is_done"), [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False), ("", False)]
)
def test_it_asks(data, capsys, monkeypatch, answer, is_done):
    """Nothing is reset without a yes, also at the end of the input (Ctrl-D): exit code 1."""
    before = stored(data)
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["settings", str(data), "--reset", "max.connections@1"]) == (0 if is_done else 1)
    assert (stored(data) != before) == is_done
    assert "reset this value? [y/N]" in capsys.readouterr().err


def test_a_document_is_alone_on_stdout(data, capsys, monkeypatch):
    """With --json the values and the question go to stderr."""
    terminal = io.StringIO("y\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["settings", str(data), "--reset", "max.connections@1", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["reset"] == [{"name": "max.connections", "node": "1", "value": "0"}]
    assert "max.connections  1     0" in printed.err


def test_a_closed_stdin_is_no_terminal(data, monkeypatch):
    """As `tidegate settings DIR --reset NAME <&-` has it: exit code 2."""
    monkeypatch.setattr("sys.stdin", None)
    assert main(["settings", str(data), "--reset-all"]) == 2


def test_without_a_terminal_it_needs_yes(data, capsys, monkeypatch):
    """A script that forgot --yes changes nothing: exit code 2 and a hint."""
    before = stored(data)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["settings", str(data), "--reset-all"]) == 2
    assert "hint: add --yes" in capsys.readouterr().err
    assert stored(data) == before


def test_a_running_broker_is_left_alone(data, capsys):
    """Its directory is locked: exit code 2, and what to do."""
    fd = os.open(data / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        assert main(["settings", str(data), "--reset-all", "--yes"]) == 2
    finally:
        os.close(fd)
    assert "is in use by another process" in capsys.readouterr().err
    assert len(stored(data)) == 4


def test_a_misspelt_name_is_answered_with_the_right_one(data, capsys):
    """Nothing is reset where one name is wrong."""
    assert main(["settings", str(data), "--reset", "max.connections@1", "--reset", "max.conections"]) == 2
    assert "did you mean 'max.connections'?" in capsys.readouterr().err
    assert len(stored(data)) == 4


def test_a_directory_of_something_else_stays_as_it_is(tmp_path, capsys):
    """Exit code 2, and no file is made there."""
    assert main(["settings", str(tmp_path)]) == 2
    assert "it has no tidegate.db" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_values_cannot_write_to_the_terminal_and_show_no_secret(tmp_path, capsys):
    """A value comes from a client: control characters are escaped, and a callback's own settings are hidden."""
    store = MetadataStore(tmp_path / "tidegate.db")
    changes = {
        "client.quota.callback.class": "a.B",
        "client.quota.callback.token": "geheim",
        "other": "\x1b[2J\n1",
    }
    store.change_settings("1", changes)
    store.close()
    assert main(["settings", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in shown] == ["value", "a.B", "[hidden]", r"\x1b[2J\n1"]


def test_nothing_changed_is_said(tmp_path, capsys):
    """No empty table."""
    MetadataStore(tmp_path / "tidegate.db").close()
    assert main(["settings", str(tmp_path)]) == 0
    assert main(["settings", str(tmp_path), "--reset-all"]) == 0
    assert capsys.readouterr().out == "no changed settings\n" * 2
