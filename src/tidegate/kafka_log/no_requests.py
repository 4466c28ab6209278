"""The error of an import that found no request: why, as far as the files show it, and what to do."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tidegate.kafka_log.log_files import LogFileError

__all__ = ["names_text", "no_requests_error"]

_NAMED_MAX = 3

_SWITCH_ON = (
    "switch the request log on: set the logger kafka.request.logger to DEBUG on the broker, "
    "and import its file (docs/import.md)"
)
_REASONS = {
    "text": (
        "has requests only in the text format that Kafka wrote before 2.8",
        "import logs of brokers of 2.8 or newer: the text format has no sizes of records",
    ),
    "json": (
        "has requests only inside JSON objects, as JSON layouts of log4j and log collectors write them",
        "log with a PatternLayout (docs/import.md), or extract the lines first, for example: jq -r .log FILE",
    ),
    "begun before": (
        "has only requests that began before the logger was switched on",
        "leave the logger on while clients send requests, and import again",
    ),
    "forwarded": (
        "has only requests that brokers forwarded to this controller",
        "import the request logs of the brokers: they have these requests, too",
    ),
}
"""Error and hint, by reason why lines were skipped; the first that fits is told."""


def no_requests_error(
    files: Sequence[Path],
    damaged: Sequence[tuple[Path, str]],
    skipped: Counter[str],
    bad: int,
    rejected: Path,
) -> LogFileError:
    """Return the error for files of which no request could be read.

    damaged: those of them that could not be read, and why; skipped: lines that are no requests of clients, by reason;
    bad: how many lines were rejected, which `rejected` lists.
    """
    names = names_text(files)
    for reason, (what, hint) in _REASONS.items():
        if skipped[reason]:
            return LogFileError(f"nothing imported: {names} {what}", hint=hint)
    if damaged:
        path, damage = damaged[0]
        return LogFileError(
            f"nothing imported: {str(path)!r} cannot be read: {damage}",
            hint="leave it out, or fetch it again",
        )
    if bad:
        return LogFileError(
            f"nothing imported: {names} has no request that can be read ({bad:,} rejected; see {rejected})",
            hint="import logs of Apache Kafka 2.8 or newer (docs/import.md)",
        )
    return LogFileError(f"nothing imported: {names} has no request line", hint=_SWITCH_ON)


def names_text(files: Sequence[Path]) -> str:
    """Return the names of files, the first of them where there are many.

    >>> names_text([Path("a"), Path("b"), Path("c"), Path("d"), Path("e")])
    "'a', 'b', 'c' and 2 more"
    """
    text = ", ".join(repr(str(path)) for path in files[:_NAMED_MAX])
    more = len(files) - _NAMED_MAX
    return f"{text} and {more:,} more" if more > 0 else text
