"""Where the clients' programs are."""

import subprocess
from pathlib import Path

import pytest
from tests.e2e.clients.programs import Tools

ROOT = Path(__file__).parents[3]
BUILD_TIMEOUT_S = 280.0


@pytest.fixture(scope="session")
def built_clients() -> Path:
    """Return where the clients lie that are built, at first use."""
    command = [ROOT / "scripts" / "client-programs.sh"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"the clients could not be built:\n{done.stderr}"
    return Path(done.stdout.strip())


@pytest.fixture
def tools(built_clients: Path, kafka_classpath: str, tmp_path: Path) -> Tools:
    """Return what clients are called with."""
    return Tools(built=built_clients, classpath=kafka_classpath, directory=tmp_path)
