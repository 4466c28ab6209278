"""Numbers, durations and times as people read them."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = [
    "NOTHING",
    "bytes_text",
    "count_text",
    "duration_range_text",
    "duration_text",
    "nanoseconds_text",
    "percent_text",
    "sentences",
    "size_text",
    "things_text",
    "thread_time_text",
    "throttled_text",
    "time_text",
]

NOTHING = "–"
"""Shown in place of a value that does not exist."""

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_BYTES_STEP = 1024
_NS_PER_US, _NS_PER_MS = 1000, 1_000_000
_FEW_MS = 100  # shorter durations are shown with tenths
_SURE = 1.1  # how far apart the ends of a range are that is shown as one number
_COARSE_MS = 9_500  # a range up to this and above has no tenths of a second
_MS_PER_SECOND = 1000
_SECONDS_PER_MINUTE = 60
_SECONDS_PER_HOUR = 3600
_HOURS_PER_DAY = 24
_MANY_HOURS = 100
_MANY_DAYS = 1000
_EXACT_UNITS = (
    *((unit, 1024**power) for power, unit in enumerate(_BYTE_UNITS[1:5], start=1)),
    *((unit, 1000**power) for power, unit in enumerate(("kB", "MB", "GB", "TB"), start=1)),
)
_HUNDREDTHS = 100
_MOST_DIGITS = 10**10
_LARGEST_SIZE = 2.0**70  # sizes for which there are units


def sentences(notes: Iterable[str]) -> list[str]:
    """Return notes as sentences: with a capital letter and a full stop.

    >>> sentences(["0: any limit is high enough", "no client was throttled"])
    ['0: any limit is high enough.', 'No client was throttled.']
    """
    return [f"{note[:1].upper()}{note[1:]}." for note in notes]


def size_text(size: float) -> str:
    """Return a configured size exactly, in the unit that makes it shortest if there is one.

    >>> size_text(1048576.0), size_text(20e6), size_text(60000.0), size_text(1234567.0), size_text(2.0**63)
    ('1 MiB', '20 MB', '60 kB', '1,234,567 B', '8388608 TiB')
    """
    if not 0 <= size < _LARGEST_SIZE or not float(size).is_integer():
        return f"{size:g} B"
    whole = int(size)
    exact = [
        f"{whole / factor:.2f}".rstrip("0").rstrip(".") + f" {unit}"
        for unit, factor in _EXACT_UNITS
        if whole >= factor and whole * _HUNDREDTHS % factor == 0 and whole < _MOST_DIGITS * factor
    ]
    if exact:
        return min(exact, key=len)
    return f"{whole:,} B" if whole < _MOST_DIGITS else bytes_text(size)


def bytes_text(amount: float) -> str:
    """Return a size with a binary unit.

    >>> bytes_text(0), bytes_text(1536), bytes_text(5 * 1024**3)
    ('0 B', '1.5 KiB', '5.0 GiB')
    >>> bytes_text(1023.7), bytes_text(1024**2 - 1), bytes_text(1024**7)
    ('1.0 KiB', '1.0 MiB', '1024.0 EiB')
    """
    unit = 0
    while abs(round(amount, min(unit, 1))) >= _BYTES_STEP and unit < len(_BYTE_UNITS) - 1:
        amount /= _BYTES_STEP
        unit += 1
    return f"{amount:.0f} B" if unit == 0 else f"{amount:.1f} {_BYTE_UNITS[unit]}"


def count_text(count: int) -> str:
    """Return a count with separators.

    >>> count_text(1234567)
    '1,234,567'
    """
    return f"{count:,}"


def things_text(count: int, one: str, many: str | None = None) -> str:
    """Return a count and its noun: `one` for 1, otherwise `many`, which is by default `one` with an s.

    >>> things_text(1, "request"), things_text(1234, "request"), things_text(0, "fetch", "fetches")
    ('1 request', '1,234 requests', '0 fetches')
    """
    return f"{count_text(count)} {one if count == 1 else many or one + 's'}"


def percent_text(part: float, whole: float) -> str:
    """Return a share in percent, `–` of a whole of 0. A share is never rounded to 0 or 100.

    >>> percent_text(1, 3), percent_text(0, 0), percent_text(1, 100_000), percent_text(99_999, 100_000)
    ('33.3%', '–', '<0.1%', '>99.9%')
    """
    if not whole:
        return NOTHING
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "<0.1%"
    if 99.9 < share < 100:
        return ">99.9%"
    return f"{share:.1f}%"


def throttled_text(row: Mapping[str, Any]) -> str:
    """Return the share of a client's requests that were throttled."""
    return percent_text(row["throttled_requests"], row["requests"]) if row["throttled_requests"] else "never"


def thread_time_text(row: Mapping[str, Any]) -> str:
    """Return the time that a client's requests took from the broker's threads."""
    return duration_text((row["handler_ns"] + row["network_ns"]) // _NS_PER_MS)


def duration_text(ms: int) -> str:
    """Return a duration in the unit that suits it.

    >>> duration_text(250), duration_text(2100), duration_text(150_000), duration_text(7_500_000)
    ('250 ms', '2.1 s', '2m30s', '2h05m')
    >>> duration_text(10**9), duration_text(10**12)
    ('11d13h', '11,574d')
    >>> duration_text(59_949), duration_text(59_960), duration_text(3_599_600)
    ('59.9 s', '1m00s', '1h00m')
    """
    if abs(ms) < _MS_PER_SECOND:
        return f"{ms} ms"
    seconds = ms / _MS_PER_SECOND
    if abs(round(seconds, 1)) < _SECONDS_PER_MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if abs(whole) < _SECONDS_PER_HOUR:
        return f"{whole // _SECONDS_PER_MINUTE}m{whole % _SECONDS_PER_MINUTE:02}s"
    hours = whole // _SECONDS_PER_HOUR
    if abs(hours) < _MANY_HOURS:
        return f"{hours}h{whole % _SECONDS_PER_HOUR // _SECONDS_PER_MINUTE:02}m"
    days = hours // _HOURS_PER_DAY
    return f"{days}d{hours % _HOURS_PER_DAY:02}h" if abs(days) < _MANY_DAYS else f"{days:,}d"


def duration_range_text(ms: int, low_ms: int | None, high_ms: int | None) -> str:
    """Return a forecast duration: as a range where its ends are more than a tenth apart.

    low_ms, high_ms: the ends, None where there are none.

    >>> duration_range_text(12_300, 10_400, 25_200), duration_range_text(900, 800, 2100)
    ('10–25 s', '800 ms–2.1 s')
    >>> duration_range_text(1500, 1200, 1900), duration_range_text(0, 0, 90_000)
    ('1.2–1.9 s', '0–1m30s')
    >>> duration_range_text(12_300, 12_000, 12_800), duration_range_text(12_300, None, None)
    ('12.3 s', '12.3 s')
    """
    if low_ms is None or high_ms is None or high_ms <= low_ms * _SURE:
        return duration_text(ms)
    if low_ms >= _MS_PER_SECOND and _COARSE_MS <= high_ms < _SECONDS_PER_MINUTE * _MS_PER_SECOND:
        return f"{round(low_ms / _MS_PER_SECOND)}–{round(high_ms / _MS_PER_SECOND)} s"
    low, high = duration_text(low_ms) if low_ms else "0", duration_text(high_ms)
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low}–{high}"


def nanoseconds_text(ns: int) -> str:
    """Return a short duration in the unit that suits it.

    >>> nanoseconds_text(900), nanoseconds_text(57_343), nanoseconds_text(1_900_000), nanoseconds_text(3 * 10**9)
    ('900 ns', '57 µs', '1.9 ms', '3.0 s')
    >>> nanoseconds_text(999_700)
    '1.0 ms'
    """
    if ns < _NS_PER_US:
        return f"{ns} ns"
    if round(ns / _NS_PER_US) < _NS_PER_MS // _NS_PER_US:
        return f"{ns / _NS_PER_US:.0f} µs"
    return f"{ns / _NS_PER_MS:.1f} ms" if ns < _FEW_MS * _NS_PER_MS else duration_text(ns // _NS_PER_MS)


def time_text(ts_ms: int) -> str:
    """Return a time stamp in UTC to the second; the bare number where the calendar ends.

    >>> time_text(1_700_000_000_123), time_text(2**62)
    ('2023-11-14 22:13:20', '4611686018427387904')
    """
    try:
        return datetime.fromtimestamp(ts_ms / _MS_PER_SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(ts_ms)
