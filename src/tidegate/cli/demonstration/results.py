"""The directory that the demo writes to: new, empty, or left by an earlier demo."""

import shutil
from pathlib import Path

from tidegate.errors import ConfigError

__all__ = ["Results"]

_MARKER = ".tidegate-demo"
_PARTS = ("broker", "plans", "usage-tables", "replay-tables", "broker.log", "idle-broker", "idle-broker.log")


class Results:
    """The places in the results directory.

    Raises `ConfigError` where `directory` holds anything that no demo put there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            self._make()
        except OSError as error:
            raise ConfigError(f"cannot write to {str(directory)!r}: {error.strerror or error}") from error

    @property
    def broker(self) -> Path:
        """Return the broker's data directory."""
        return self.directory / "broker"

    @property
    def usage(self) -> Path:
        """Return where the broker keeps its usage record."""
        return self.broker / "usage"

    @property
    def idle_broker(self) -> Path:
        """Return the data directory of the broker that nobody floods."""
        return self.directory / "idle-broker"

    @property
    def plans(self) -> Path:
        """Return the directory of the quota files."""
        return self.directory / "plans"

    @property
    def usage_tables(self) -> Path:
        """Return where the usage tables go."""
        return self.directory / "usage-tables"

    @property
    def replays(self) -> Path:
        """Return where the replay's tables go."""
        return self.directory / "replay-tables"

    def _make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        marker = self.directory / _MARKER
        foreign = next(self.directory.iterdir(), None)
        if foreign is not None and not marker.is_file():
            raise ConfigError(
                f"{str(self.directory)!r} is not empty and does not hold an earlier demo (found {foreign.name!r})",
                hint="give another directory: tidegate demo --out DIR",
            )
        marker.touch()
        for part in _PARTS:
            path = self.directory / part
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.plans.mkdir()
