"""Garbage collection of the commands that serve: it learns of long work, so that it does not search what that makes."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench.ports import free_port
from tests.gateway.lying_broker import LyingBroker

PROGRAM = """
import os, signal, sys
from tidegate.cli.main import main
from tidegate.server.node import Node
from tidegate.server.short_collections import ShortCollections

def start(collections):
    for has_work in (False, True):
        Node.has_work = property(lambda node: has_work)
        print("work:", collections._has_work())
    os.kill(os.getpid(), signal.SIGTERM)

ShortCollections.start = start
sys.exit(main(sys.argv[1:]))
"""
"""Asks what the collections of a command learn while its nodes have work and while they have none, and stops it."""


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_collections_learn_of_the_work_of_all_nodes(tmp_path: Path, command: str) -> None:
    """The command gives them a function that asks its nodes."""
    broker = LyingBroker()
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    of_gateway = ("--upstream", broker.address, "--quotas", str(quotas))
    options = of_gateway if command == "gateway" else ()
    listener = f"listeners=PLAINTEXT://127.0.0.1:{free_port(2)}"
    try:
        ended = subprocess.run(
            [
                *(sys.executable, "-c", PROGRAM, command, *options, "--data", str(tmp_path / "data")),
                *("--override", listener),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        broker.close()
    told = [line for line in ended.stdout.splitlines() if line.startswith("work:")]
    assert (ended.returncode, told) == (0, ["work: False", "work: True"]), ended.stderr
