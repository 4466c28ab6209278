"""Mistakes in the options and files of `tidegate gateway`: each is one line, with what was probably meant."""

import subprocess
import sys

import pytest

from tidegate.cli.main import main


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (
            ["--listen", "gateway1"],
            ["error: --listen is 'gateway1', expected HOST:PORT", "hint: for example"],
        ),
        (
            ["--proceses", "2"],
            ["error: unrecognized argument '--proceses'", "hint: did you mean '--processes'?"],
        ),
        (
            ["--override", "tidegate.quota.cluster.wid=all"],
            [
                "error: unknown setting 'tidegate.quota.cluster.wid'",
                "hint: did you mean 'tidegate.quota.cluster.wide'?",
            ],
        ),
        (
            ["--upstream-config", "client.properties"],
            [
                "warning: unknown setting 'security.protocl' in --upstream-config has no effect; did you mean "
                "'security.protocol'?",
                "error: cannot connect",
                "hint: ",
            ],
        ),
    ],
)
def test_a_mistake_is_one_line(tmp_path, options, lines):
    """The gateway ends, because nothing listens at its upstream."""
    (tmp_path / "client.properties").write_text("security.protocl=SSL\n")
    command = [sys.executable, "-m", "tidegate", "gateway", "--upstream", "127.0.0.1:1", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    found = done.stderr.splitlines()
    assert len(found) == len(lines), done.stderr
    for line, expected in zip(found, lines, strict=True):
        assert line.startswith(expected), done.stderr


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--brokers", "x"], "--brokers is 'x', expected ids such as 1,3-5", "remove --brokers"),
        (["--brokers", "5-1"], "--brokers has the range 5-1, expected 1 to 10000 ids", "write the lower id"),
        (
            ["--override", "foo"],
            "--override begins with 'foo', expected KEY=VALUE",
            "for example --override ",
        ),
        (["--config", "none"], "cannot read settings from 'none': No such file", "check the path"),
        (["--upstream-config", "none"], "cannot read settings from 'none': No such file", "check the path"),
        (["--upstream-config", "bad"], "request.timeout.ms must be", "check --upstream-config bad"),
        (
            ["--override", "max.connections=-5"],
            "max.connections is '-5', expected",
            "`tidegate serve --list-",
        ),
        (
            ["--override", "tidegate.quota.observe=al"],
            "tidegate.quota.observe has 'al'",
            "`tidegate serve --",
        ),
        (
            ["--override", "tidegate.metrics.listener=x"],
            "tidegate.metrics.listener is 'x'",
            "`tidegate serve",
        ),
        (["--bootstrap-name", "a b"], "--bootstrap-name has 'a b', expected a host name", "for example --"),
    ],
)
def test_an_error_of_settings_has_a_hint(tmp_path, monkeypatch, capsys, options, message, hint):
    """An error names the mistake, its place, the expected value and a fix."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_text("request.timeout.ms=soon\n")
    assert main(["gateway", "--upstream", "127.0.0.1:1", *options]) == 2
    error, _, hinted = capsys.readouterr().err.partition("\nhint: ")
    assert error.splitlines()[-1].startswith(f"error: {message}")
    assert hinted.startswith(hint)
    assert hinted.count("\n") == 1
