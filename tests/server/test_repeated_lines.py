"""Lines that repeat: the first at once, one a period after that, and none is lost from the count."""

import logging

from tidegate.server.repeated_lines import MAX_KINDS, PERIOD_S, RepeatedLines


class Log:
    """A logger whose handler has the filter, and a clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[str] = []
        self.repeated = RepeatedLines(lambda: self.now_s)
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        handler.addFilter(self.repeated)
        self.logger = logging.Logger("tidegate.test")
        self.logger.addHandler(handler)

    def warn(self, kind: str | None, text: str = "closing %s", *args: object) -> None:
        """Log one line."""
        self.logger.warning(text, *args, extra={} if kind is None else {"repeats": kind})


def test_a_line_without_a_kind_always_passes() -> None:
    """What is not said to repeat is left alone."""
    log = Log()
    for number in range(5):
        log.warn(None, "line %d", number)
    assert len(log.lines) == 5


def test_one_line_a_period_says_how_many_were_like_it() -> None:
    """23,000 lines of a minute become one, and the next one tells of them."""
    log = Log()
    for number in range(23_000):
        log.now_s = number * PERIOD_S / 23_000
        log.warn("bad frame 1.2.3.4", "closed connection %d", number)
    log.now_s = PERIOD_S
    log.warn("bad frame 1.2.3.4", "closed connection %d", 23_000)
    assert log.lines == [
        "closed connection 0",
        "closed connection 23000 (22999 similar lines since the last one)",
    ]


def test_kinds_and_addresses_are_told_apart() -> None:
    """One who floods does not hide another's first line."""
    log = Log()
    for _ in range(3):
        for kind in ("bad frame 1.2.3.4", "bad frame 5.6.7.8", "failed 1.2.3.4"):
            log.warn(kind, "closing %s", kind)
    assert len(log.lines) == 3


def test_what_does_not_come_again_is_summed_up() -> None:
    """A burst that ends is told of when its period is over, once."""
    log = Log()
    for number in range(10):
        log.warn("append t-0", "cannot append %d", number)
    log.warn("append t-1", "cannot append once")
    assert log.repeated.sums(PERIOD_S - 1) == []
    assert log.repeated.sums(PERIOD_S) == ["9 similar lines in the last 60 s, the latest: cannot append 9"]
    assert log.repeated.sums(PERIOD_S) == []


def test_the_table_is_bounded() -> None:
    """However many addresses there are, few lines are written in a period, and all are counted."""
    log = Log()
    for number in range(20_000):
        log.warn(f"bad frame {number}", "closing %d", number)
    assert len(log.lines) == MAX_KINDS + 1
    assert len(log.repeated._kinds) <= MAX_KINDS + 1
    counted = [int(line.split()[0]) for line in log.repeated.sums(PERIOD_S)]
    assert sum(counted) + len(log.lines) == 20_000


def test_one_address_cannot_use_up_all_kinds() -> None:
    """Its lines differ as it likes: those of another address are written all the same."""
    log = Log()
    for owner in ("10.0.0.1", "10.0.0.2"):
        for number in range(1000):
            extra = {"repeats": f"bad mechanism {owner} {number}", "repeats_of": owner}
            log.logger.warning("closing %d", number, extra=extra)
    assert len(log.lines) == MAX_KINDS * 3 // 4
    log.logger.warning("closing victim", extra={"repeats": "bad frame victim", "repeats_of": "10.0.0.3"})
    assert log.lines[-1] == "closing victim"


def test_old_kinds_make_room() -> None:
    """An address of long ago does not stand in the way of a new one."""
    log = Log()
    for number in range(MAX_KINDS):
        log.warn(f"bad frame {number}")
    log.now_s = PERIOD_S
    log.warn("bad frame new")
    log.warn("bad frame newer")
    assert len(log.lines) == MAX_KINDS + 2
