"""Jobs over usage records: usage, replays of other quotas, limits, recommended quotas, obedience (docs/python-api.md).

    from tidegate import pipeline

    used = pipeline.usage("./usage", last="6h").in_all.to_pandas()

Each function is loaded when it is first named, so importing this package costs nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError, install_hint

if TYPE_CHECKING:
    from tidegate.pipeline.api import (
        GROUPS,
        NotRecordedError,
        limits,
        obedience,
        recommend,
        replay,
        usage,
    )
    from tidegate.pipeline.outcomes import SCHEMAS, Limits, Obedience, Recommended, Replay, Usage
    from tidegate.pipeline.progress import Progress
    from tidegate.pipeline.record import Record, open_record
    from tidegate.pipeline.replay.limits import Tolerance
    from tidegate.pipeline.request_log import import_request_log

__all__ = [
    "GROUPS",
    "SCHEMAS",
    "Limits",
    "NotRecordedError",
    "Obedience",
    "Progress",
    "Recommended",
    "Record",
    "Replay",
    "Tolerance",
    "Usage",
    "import_request_log",
    "limits",
    "obedience",
    "open_record",
    "recommend",
    "replay",
    "usage",
]

_SOURCES = {
    "api": ("GROUPS", "NotRecordedError", "limits", "obedience", "recommend", "usage"),
    "outcomes": ("SCHEMAS", "Limits", "Obedience", "Recommended", "Replay", "Usage"),
    "progress": ("Progress",),
    "record": ("Record", "open_record"),
    "replay.limits": ("Tolerance",),
    "request_log": ("import_request_log",),
}
_SOURCE_OF = {name: source for source, names in _SOURCES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a function or class when it is first named. Raises `TidegateError` where the extra is not installed."""
    if name not in _SOURCE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _loaded(_SOURCE_OF[name], name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__


def _loaded(source: str, name: str) -> Any:
    try:
        return getattr(import_module(f"{__name__}.{source}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tidegate"):
            raise
        raise TidegateError(
            f"tidegate.pipeline needs the module {error.name!r}, which is not installed",
            hint=install_hint("pipeline"),
        ) from error


class _Package(ModuleType):
    """This package, whose `replay` is the function.

    The import system sets the subpackage of the same name as an attribute here, whenever that is first imported.
    """

    @property
    def replay(self) -> Any:
        """Return the function `replay`."""
        return _loaded("api", "replay")

    @replay.setter
    def replay(self, subpackage: ModuleType) -> None:
        """Ignore the subpackage: it is imported by its full name."""


sys.modules[__name__].__class__ = _Package
