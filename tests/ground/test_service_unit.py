"""The systemd units: systemd accepts them, and their command lines are ones that Tidegate takes."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tidegate.cli.main import _parser

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "packaging").glob("*.service"))


def parsed(path: Path) -> configparser.ConfigParser:
    """Return a unit: each setting once, in a section."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def test_there_are_two_units() -> None:
    """One is for a broker, the other for a gateway."""
    assert {path.stem for path in UNITS} == {"tidegate", "tidegate-gateway"}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_the_command_line_is_right(path: Path) -> None:
    """Its options exist, and its paths are the directories that the unit makes."""
    unit = parsed(path)
    command, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert command == "/opt/tidegate/bin/tidegate"
    args = _parser(arguments).parse_args(arguments)
    assert args.data == f"/var/lib/{unit['Service']['StateDirectory']}"
    assert Path(args.config).parent == Path("/etc", unit["Service"]["ConfigurationDirectory"])
    assert args.log_format == "json"
    if path.stem == "tidegate":
        assert args.usage_group == unit["Service"]["Group"]
    else:
        assert args.upstream == "${UPSTREAM}"
        assert "EnvironmentFile" in unit["Service"]
        assert "-HUP" in unit["Service"]["ExecReload"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_what_the_process_needs_is_not_forbidden(path: Path) -> None:
    """Shared usage directories need the set-group-ID bit, and stopping needs time for the usage writer.

    A broker that cannot start is not started again; a gateway is, because its cluster may come later.
    """
    unit = parsed(path)
    service = unit["Service"]
    is_broker = path.stem == "tidegate"
    assert ("RestrictSUIDSGID" in service) is not is_broker
    assert service.get("RestartPreventExitStatus") == ("2" if is_broker else None)
    assert service["KillMode"] == "control-group"
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", name) for section in unit.values() for name in section)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing, where it is installed; the tests above need no systemd."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return
    copy = tmp_path / path.name
    text = path.read_text(encoding="utf-8")
    # The program has to be there; users are looked up when the unit starts.
    copy.write_text(text.replace("/opt/tidegate/bin/tidegate", shutil.which("true") or "/bin/true"))
    done = subprocess.run(
        [tool, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in done.stderr.splitlines() if path.name in line or str(copy) in line]
    assert (done.returncode, ours) == (0, [])
    copy.write_text(copy.read_text().replace("KillMode=control-group", "KillMode=nonsense"))
    broken = subprocess.run(
        [tool, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "kill mode" in broken.stderr  # it looks at values
