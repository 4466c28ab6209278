"""The systemd unit: systemd accepts it, and its command line is one that `tidegate serve` takes."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tidegate.cli.main import _parser

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "packaging" / "tidegate.service"


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    """Return the unit, parsed: each setting once, in a section."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


def test_the_command_line_is_right(unit: configparser.ConfigParser) -> None:
    """Its options exist, and its paths are the directories that the unit makes."""
    command, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert command == "/opt/tidegate/bin/tidegate"
    args = _parser(arguments).parse_args(arguments)
    assert args.data == f"/var/lib/{unit['Service']['StateDirectory']}"
    assert Path(args.config).parent == Path("/etc", unit["Service"]["ConfigurationDirectory"])
    assert args.usage_group == unit["Service"]["Group"]
    assert args.log_format == "json"


def test_what_the_broker_needs_is_not_forbidden(unit: configparser.ConfigParser) -> None:
    """The shared usage directories need the set-group-ID bit, and stopping needs time for the usage writer."""
    service = unit["Service"]
    assert "RestrictSUIDSGID" not in service
    assert service["RestartPreventExitStatus"] == "2"
    assert service["KillMode"] == "control-group"
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", name) for section in unit.values() for name in section)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing, where it is installed; the tests above need no systemd."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return
    copy = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    # The program has to be there; users are looked up when the unit starts.
    copy.write_text(text.replace("/opt/tidegate/bin/tidegate", shutil.which("true") or "/bin/true"))
    done = subprocess.run(
        [tool, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line or str(copy) in line]
    assert (done.returncode, ours) == (0, [])
    copy.write_text(copy.read_text().replace("KillMode=control-group", "KillMode=nonsense"))
    broken = subprocess.run(
        [tool, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "kill mode" in broken.stderr  # it looks at values
