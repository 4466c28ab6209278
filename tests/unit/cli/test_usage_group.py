"""`--usage-group`: what the group may do, and what is refused."""

import os
import stat
from pathlib import Path

import pytest

from tidegate.cli.usage_group import share_usage
from tidegate.errors import ConfigError


def test_the_group_may_pass_through_the_data_directory(tmp_path: Path) -> None:
    """It may not list it; a usage directory elsewhere changes nothing above it."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir(mode=0o750)
    elsewhere.mkdir(mode=0o700)
    share_usage(str(os.getgid()), usage_dir=data / "records" / "usage", data_dir=data)
    share_usage(str(os.getgid()), usage_dir=elsewhere / "usage", data_dir=data)
    paths = [data, data / "records", data / "records" / "usage", elsewhere, elsewhere / "usage"]
    modes = [oct(stat.S_IMODE(path.stat().st_mode)) for path in paths]
    assert modes == ["0o710", "0o710", "0o2750", "0o700", "0o2750"]


@pytest.mark.parametrize("group", ["no-such-group", "4000000000", str(2**70)])
def test_an_unknown_group_is_refused(tmp_path: Path, group: str) -> None:
    """Nothing is made."""
    with pytest.raises(ConfigError, match="--usage-group is"):
        share_usage(group, usage_dir=tmp_path / "usage", data_dir=tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
