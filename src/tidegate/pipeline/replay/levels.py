"""Quota types, levels of entities, and the limit for measured peaks, without a need for numpy."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.config.windows import Windows
from tidegate.errors import ArgumentError
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.measure.throttle import saturate_to_int32

__all__ = ["ENTITIES_BY", "FETCH_ANSWER_BYTES", "QUOTA_TYPES", "check_level", "smallest_limit"]

QUOTA_TYPES = (QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST, QuotaType.CONTROLLER_MUTATION)
"""Quota types in the order of the kernel's numbers."""

ENTITIES_BY: Mapping[str, EntityParts] = {
    "both": (("client-id", None), ("user", None)),
    "user": (("user", None),),
    "client-id": (("client-id", None),),
}
"""Levels of entities, by the names of `--by`."""

FETCH_ANSWER_BYTES = 49
"""Smallest charge in bytes of an answer to a Fetch, besides its records; the cap limits only records (B§6.3)."""


def check_level(by: str | None) -> None:
    """Check the name of a level; None is no level. Raises `ArgumentError`."""
    if by is not None and (not isinstance(by, str) or by not in ENTITIES_BY):
        raise ArgumentError(f"by must be {', '.join(ENTITIES_BY)}, got {by!r}")


def smallest_limit(rows: Sequence[Mapping[str, Any]], windows: Windows) -> float:
    """Return the smallest limit, per second, that throttles no request and shortens no fetch, on any node."""
    limit: float = max(row["peak"] for row in rows)
    largest: float = max(row["largest_amount"] for row in rows) - FETCH_ANSWER_BYTES
    seconds = windows.rate.max_value(1.0)
    if rows[0]["quota_type"] == QuotaType.FETCH.value and seconds > 0:
        limit = max(limit, largest / seconds)
        while saturate_to_int32(windows.rate.max_value(limit)) < largest:  # by a bit of the double
            limit = math.nextafter(limit, math.inf)
    return limit
