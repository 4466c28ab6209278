"""Numbers and foreign names as they are shown on a terminal."""

from datetime import UTC, datetime

__all__ = ["bytes_text", "count_text", "duration_text", "name_text", "percent_text", "time_text"]

_LONGEST_NAME = 40  # characters of a user or client id that a table shows
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_BYTES_STEP = 1024
_MS_PER_SECOND = 1000
_SECONDS_PER_MINUTE = 60
_SECONDS_PER_HOUR = 3600


def name_text(name: str | None, *, longest: int = _LONGEST_NAME) -> str:
    r"""Return a client's own name made harmless: no control characters, not too long; `–` where there is none.

    >>> name_text("a\x1b[2J"), name_text(None), name_text("")
    ('a\\x1b[2J', '–', "''")
    """
    if name is None:
        return "–"
    shown = "".join(char if char.isprintable() else _escaped(char) for char in name) or "''"
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def bytes_text(amount: float) -> str:
    """Return a size with a binary unit.

    >>> bytes_text(0), bytes_text(1536), bytes_text(5 * 1024**3)
    ('0 B', '1.5 KiB', '5.0 GiB')
    """
    unit = 0
    while abs(amount) >= _BYTES_STEP and unit < len(_BYTE_UNITS) - 1:
        amount /= _BYTES_STEP
        unit += 1
    return f"{amount:.0f} B" if unit == 0 else f"{amount:.1f} {_BYTE_UNITS[unit]}"


def count_text(count: int) -> str:
    """Return a count with separators.

    >>> count_text(1234567)
    '1,234,567'
    """
    return f"{count:,}"


def percent_text(part: float, whole: float) -> str:
    """Return a share in percent; `–` of nothing; never rounded to 0 or 100 what is not.

    >>> percent_text(1, 3), percent_text(0, 0), percent_text(1, 100_000), percent_text(99_999, 100_000)
    ('33.3%', '–', '<0.1%', '>99.9%')
    """
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "<0.1%"
    if 99.9 < share < 100:
        return ">99.9%"
    return f"{share:.1f}%"


def duration_text(ms: int) -> str:
    """Return a duration in the unit that suits it.

    >>> duration_text(250), duration_text(2100), duration_text(150_000), duration_text(7_500_000)
    ('250 ms', '2.1 s', '2m30s', '2h05m')
    """
    if abs(ms) < _MS_PER_SECOND:
        return f"{ms} ms"
    seconds = ms / _MS_PER_SECOND
    if abs(seconds) < _SECONDS_PER_MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if abs(whole) < _SECONDS_PER_HOUR:
        return f"{whole // _SECONDS_PER_MINUTE}m{whole % _SECONDS_PER_MINUTE:02}s"
    return f"{whole // _SECONDS_PER_HOUR}h{whole % _SECONDS_PER_HOUR // _SECONDS_PER_MINUTE:02}m"


def time_text(ts_ms: int) -> str:
    """Return a time stamp in UTC to the second; the bare number where the calendar ends.

    >>> time_text(1_700_000_000_123), time_text(2**62)
    ('2023-11-14 22:13:20', '4611686018427387904')
    """
    try:
        return datetime.fromtimestamp(ts_ms / _MS_PER_SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(ts_ms)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
