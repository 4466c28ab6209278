"""Mistakes in the options and files of `tidegate gateway`: each is one line, with what was probably meant."""

import subprocess
import sys

import pytest


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
                "warning: unknown setting 'tidegate.quota.cluster.wid' has no effect; did you mean",
                "error: cannot connect",
                "hint: ",
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
