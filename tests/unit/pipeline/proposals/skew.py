"""Uneven usage of brokers out of rows, not out of columns."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from tidegate.pipeline.proposals.evidence import Name
from tidegate.pipeline.proposals.limits_of_type import Row, name_of
from tidegate.pipeline.proposals.notes import _SKEWED, uneven_notes

__all__ = ["skew_notes"]


def skew_notes(nodes: Sequence[Row]) -> list[str]:
    """Return the notes on rows of `LIMITS_BY_NODE`."""
    shares: dict[str, dict[Name | None, Counter[int]]] = {
        kind.value: defaultdict(Counter) for kind in _SKEWED
    }
    for row in nodes:
        for name in (None, name_of(row)) if row["quota_type"] in shares else ():
            shares[row["quota_type"]][name][row["node_id"]] += row["amount"]
    return uneven_notes(shares, len({row["node_id"] for row in nodes}))
