"""`tidegate serve --usage-group GROUP`: a group that may read the usage record."""

import grp
import os
import stat
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.usage.directory import make_private_directory, share_directory

__all__ = ["share_usage"]

_READ_AND_WRITE, _SEARCH = 0o060, 0o010  # of the group


def share_usage(group: str, *, usage_dir: Path, data_dir: Path) -> None:
    """Share the usage record with a group, given by name or number. Raises `ConfigError`.

    If the usage directory is inside the data directory, the group may pass through the data directory, but cannot list
    or read anything else in it.
    """
    group_id = _group_id(group)
    usage_dir, data_dir = usage_dir.resolve(), data_dir.resolve()
    try:
        make_private_directory(usage_dir)
        share_directory(usage_dir, group_id)
        if data_dir in usage_dir.parents:
            for directory in [path for path in usage_dir.parents if path.is_relative_to(data_dir)]:
                _let_pass(directory, group_id)
    except OSError as error:
        raise ConfigError(
            f"cannot share {str(usage_dir)!r} with group {group!r}: {error.strerror or error}",
            hint="the broker's user must own the directory and be a member of the group (usermod -aG GROUP USER)",
        ) from error


def _group_id(group: str) -> int:
    try:
        return grp.getgrgid(int(group)).gr_gid if group.isdecimal() else grp.getgrnam(group).gr_gid
    except (KeyError, OverflowError) as error:
        raise ConfigError(
            f"--usage-group is {group!r}, expected a group of this system", hint="see getent group"
        ) from error


def _let_pass(directory: Path, group_id: int) -> None:
    os.chown(directory, -1, group_id)
    mode = stat.S_IMODE(directory.stat().st_mode)
    directory.chmod((mode & ~_READ_AND_WRITE) | _SEARCH)
