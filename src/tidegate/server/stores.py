"""What the front needs kept: quota definitions that survive a restart."""

from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

from tidegate.quota import QuotaRecord

__all__ = ["QuotaStore"]


class QuotaStore(Protocol):
    """Where quota definitions are kept; `tidegate.storage` has the one on disk."""

    def load_quotas(self) -> Iterable[QuotaRecord]:
        """Return a record per stored definition."""
        ...

    def apply_quota_records_in_slices(self, records: Sequence[QuotaRecord]) -> Generator[None, None, None]:
        """Store all of `records`, or none, yielding in between: they survive `kill -9` when this returns.

        Raises `TidegateError` or `OSError` where they cannot be stored; nothing has changed then. One at a time.
        """
        ...
