"""The windows that quotas are measured in: one for rates, one for controller mutations."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidegate.quota.admin.keys import WINDOW_SETTINGS
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["Windows"]

_MS_PER_SECOND = 1000
_PARTS = {
    "quota.window.num": ("rate", "samples", 1),
    "quota.window.size.seconds": ("rate", "window_ms", _MS_PER_SECOND),
    "controller.quota.window.num": ("mutation", "samples", 1),
    "controller.quota.window.size.seconds": ("mutation", "window_ms", _MS_PER_SECOND),
}
assert tuple(_PARTS) == WINDOW_SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Both windows; the defaults are Kafka's."""

    rate: QuotaWindow = field(default_factory=QuotaWindow)
    mutation: QuotaWindow = field(default_factory=QuotaWindow)

    @classmethod
    def of(cls, settings: Mapping[str, int]) -> "Windows":
        """Return the windows that `settings`, by Kafka's names, ask for. Raises `ConfigError`."""
        windows = cls()
        for name, value in settings.items():
            windows = windows.replaced(name, value)
        return windows

    def replaced(self, name: str, value: int) -> "Windows":
        """Return the windows with one setting changed. Raises `ConfigError` where `value` is out of range."""
        part, attribute, unit = _PARTS[name]
        changed = replace(getattr(self, part), **{attribute: value * unit})
        return replace(self, **{part: changed})
