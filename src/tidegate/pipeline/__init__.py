"""Jobs over usage records: usage, replays of other quotas, limits, proposals, reports, watches (docs/python-api.md).

    from tidegate import pipeline

    used = pipeline.usage("./usage", last="6h").in_all.to_pandas()

Each function is loaded when it is first named, so importing this package costs nothing.
"""

import logging
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
        report,
        usage,
    )
    from tidegate.pipeline.compacting import compact
    from tidegate.pipeline.metrics import RecommendedFromMetrics, recommend_from_prometheus
    from tidegate.pipeline.outcomes import SCHEMAS, Limits, Obedience, Recommended, Replay, Usage
    from tidegate.pipeline.progress import Progress
    from tidegate.pipeline.record import Opening, Record, open_record
    from tidegate.pipeline.replay.limits import Tolerance
    from tidegate.pipeline.request_log import import_request_log
    from tidegate.pipeline.watching import Watched, watch

__all__ = [
    "GROUPS",
    "SCHEMAS",
    "Limits",
    "NotRecordedError",
    "Obedience",
    "Opening",
    "Progress",
    "Recommended",
    "RecommendedFromMetrics",
    "Record",
    "Replay",
    "Tolerance",
    "Usage",
    "Watched",
    "compact",
    "import_request_log",
    "limits",
    "obedience",
    "open_record",
    "recommend",
    "recommend_from_prometheus",
    "replay",
    "report",
    "usage",
    "watch",
]

_SOURCES = {
    "api": ("GROUPS", "NotRecordedError", "limits", "obedience", "recommend", "replay", "report", "usage"),
    "compacting": ("compact",),
    "metrics": ("RecommendedFromMetrics", "recommend_from_prometheus"),
    "outcomes": ("SCHEMAS", "Limits", "Obedience", "Recommended", "Replay", "Usage"),
    "progress": ("Progress",),
    "record": ("Opening", "Record", "open_record"),
    "replay.limits": ("Tolerance",),
    "request_log": ("import_request_log",),
    "watching": ("Watched", "watch"),
}
_SOURCE_OF = {name: source for source, names in _SOURCES.items() for name in names}

for _logger in ("pipeline", "usage.convert", "usage.directory", "usage.unconverted"):
    # Else Python prints the warnings of functions in a program that does not set up logging.
    logging.getLogger(f"tidegate.{_logger}").addHandler(logging.NullHandler())


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
    """This package, whose `replay`, `report` and `watch` are functions.

    The import system sets the subpackages of the same names as attributes here, whenever they are first imported.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Ignore a subpackage with the name of a function: it is imported by its full name."""
        if name not in _SOURCE_OF or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
