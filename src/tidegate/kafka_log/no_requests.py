"""The error of an import that found no request: why, as far as the files show it, and what to do."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tidegate.kafka_log.log_files import LogFileError

__all__ = ["names_text", "no_requests_error"]

_NAMED_MAX = 3

_SWITCH_ON = (
    "set the logger kafka.request.logger to DEBUG on the broker, then import the file that it writes "
    "(docs/import.md)"
)
_REASONS = {
    "text": (
        "all requests are in the text format of Kafka before 2.8",
        "import logs of Kafka 2.8 or later: the text format does not contain the sizes of records",
    ),
    "json": (
        "all requests are inside JSON objects, as JSON layouts of log4j and log collectors write them",
        "log with a PatternLayout (docs/import.md), or extract the lines first, for example: jq -r .log FILE",
    ),
    "begun before": (
        "all requests began before the logger was switched on",
        "leave the logger on while clients send requests, and import again",
    ),
    "forwarded": (
        "all requests were forwarded to this controller by brokers",
        "import the request logs of the brokers: they also contain these requests",
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
            return LogFileError(f"nothing imported from {names}: {what}", hint=hint)
    if damaged:
        path, damage = damaged[0]
        return LogFileError(
            f"nothing imported: cannot read {str(path)!r}: {damage}",
            hint="remove it from the command, or copy it again",
        )
    if bad:
        return LogFileError(
            f"nothing imported from {names}: no request can be read ({bad:,} rejected; see {rejected})",
            hint="import logs of Apache Kafka 2.8 or newer (docs/import.md)",
        )
    return LogFileError(f"nothing imported from {names}: no line contains a request", hint=_SWITCH_ON)


def names_text(files: Sequence[Path]) -> str:
    """Return the names of files, the first of them where there are many.

    >>> names_text([Path("a"), Path("b"), Path("c"), Path("d"), Path("e")])
    "'a', 'b', 'c' and 2 more"
    """
    text = ", ".join(repr(str(path)) for path in files[:_NAMED_MAX])
    more = len(files) - _NAMED_MAX
    return f"{text} and {more:,} more" if more > 0 else text
