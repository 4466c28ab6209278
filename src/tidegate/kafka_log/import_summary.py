"""The counts of an import."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ImportSummary"]


@dataclass(slots=True, kw_only=True)
class ImportSummary:
    """The result of an import. skipped: lines that are not client requests, by reason; bad: lines that cannot be read.

    damaged: files that could be read only in part or not at all, with the reason;
    without_requests: files of other loggers;
    doubles: new requests that look like another request of the same time;
    whole_seconds: files whose first line has no fraction of a second;
    unfinished: files whose last line is incomplete; that line is left for a later import;
    requests: those that were imported; outside: those that are not in the range.
    """

    files: int = 0
    files_known: int = 0
    unfinished: int = 0
    damaged: list[tuple[Path, str]] = field(default_factory=list)
    without_requests: list[Path] = field(default_factory=list)
    bytes: int = 0
    requests: int = 0
    outside: int = 0
    bad: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    estimated_fetches: int = 0
    doubles: int = 0
    whole_seconds: int = 0
    unpriced: int = 0
    quotas: int = 0
    first_ms: int | None = None
    last_ms: int | None = None

    def leave_out(self, requests: int) -> None:
        """Count requests as outside of the range, which were counted as imported."""
        self.outside += requests
        self.requests -= requests
