"""Log lines that a client can cause by the thousand: the first is written at once, similar ones are counted.

The caller of the log names the kind of the line; lines of the same kind are similar:

    _log.warning("closed %s: %s", name, reason, extra={"repeats": f"bad frame {host}"})

If the kind depends on a text of the client, the line also has the client's address, as `"repeats_of"`. The number of
kinds is divided between addresses (`tidegate.fair_share.ThresholdBound`), so that one address cannot use all of them;
further lines count as one kind, `others`.

The filter is set on the handler that writes the lines. It passes one line of each kind in `PERIOD_S`, with the number
of lines that were dropped since the last one. `sums` returns the counts of kinds that have ended.

>>> lines = RepeatedLines(lambda: 0.0)
>>> record = logging.LogRecord("tidegate", logging.WARNING, "", 0, "closed %s", ("connection 1",), None)
>>> record.repeats = "bad frame 127.0.0.1"
>>> [lines.filter(record) for _ in range(3)]
[True, False, False]
>>> lines.sums(60.0)
['2 similar lines in the last 60 s, the latest: closed connection 1']
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.fair_share import UNKNOWN_OWNER, ThresholdBound, address_owner

__all__ = ["MAX_KINDS", "PERIOD_S", "RepeatedLines", "kind_of", "repeats"]

PERIOD_S = 60.0
MAX_KINDS = 100
"""Most kinds that are distinguished at a time. Lines of further kinds count as one kind."""
_OTHERS = "others"
_MAX_TEXT = 1000
_KIND_CHARS = 80
_NO_DIGITS = str.maketrans("", "", "0123456789")


def kind_of(reason: str) -> str:
    """Return the first part of a reason without digits, so that lines which differ only in numbers are of one kind."""
    return reason.translate(_NO_DIGITS)[:_KIND_CHARS]


def repeats(kind: str, host: str) -> dict[str, str]:
    """Return the `extra` of a log call for a line that the client at `host` can cause many times."""
    return {"repeats": f"{kind} {host}", "repeats_of": address_owner(host)}


@dataclass(slots=True)
class _Kind:
    """Suppressed log lines of one kind, since the last line that was written: their count and the last text."""

    until_s: float
    owner: str
    count: int = 0
    last: str = ""


class RepeatedLines(logging.Filter):
    """A filter that passes one line of each kind in a period. monotonic_s: returns the time in seconds."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        super().__init__()
        self._monotonic_s = monotonic_s
        self._kinds: OrderedDict[str, _Kind] = OrderedDict()
        self._shares = ThresholdBound(MAX_KINDS)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write `record`. Add the number of dropped lines to its text, if any."""
        name: str | None = getattr(record, "repeats", None)
        if name is None:
            return True
        now_s = self._monotonic_s()
        kind, owner = self._kinds.get(name), getattr(record, "repeats_of", UNKNOWN_OWNER)
        if kind is None and not self._may_add(owner):
            self._drop_old(now_s)
            if not self._may_add(owner):
                name, kind, owner = _OTHERS, self._kinds.get(_OTHERS), UNKNOWN_OWNER
        if kind is not None and now_s < kind.until_s:
            kind.count += 1
            kind.last = record.getMessage()[:_MAX_TEXT]
            return False
        if kind is not None and kind.count:
            record.msg = f"{record.getMessage()} ({kind.count} similar lines since the last one)"
            record.args = ()
        if kind is not None:
            self._forget(name)
        self._kinds[name] = _Kind(now_s + PERIOD_S, owner)
        self._shares.count_use(owner)
        return True

    def sums(self, now_s: float) -> list[str]:
        """Return a line for each kind whose period is over and that has dropped lines; remove these kinds."""
        over = [name for name, kind in self._kinds.items() if now_s >= kind.until_s]
        kinds = [self._forget(name) for name in over]
        return [
            f"{kind.count} similar lines in the last {PERIOD_S:.0f} s, the latest: {kind.last}"
            for kind in kinds
            if kind.count
        ]

    def _drop_old(self, now_s: float) -> None:
        """Remove kinds whose period is over and that have no dropped lines. Kinds are in the order of their ends."""
        for name, kind in list(self._kinds.items()):
            if now_s < kind.until_s:
                return
            if not kind.count:
                self._forget(name)

    def _may_add(self, owner: str) -> bool:
        """Return whether one more kind of an address can be distinguished; lines without an address are not limited."""
        shares = self._shares
        return shares.fits() if owner == UNKNOWN_OWNER else shares.may_add(owner)

    def _forget(self, name: str) -> _Kind:
        kind = self._kinds.pop(name)
        self._shares.remove(kind.owner)
        return kind
