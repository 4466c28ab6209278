"""Arguments of the functions of `tidegate.pipeline`: paths, numbers and ranges of time.

It needs the base installation only.
"""

import errno
import os
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from tidegate.config.locations import Location, Uri, location
from tidegate.errors import ArgumentError, ConfigError

__all__ = [
    "Path_",
    "Time",
    "check_number",
    "check_whole",
    "duration_ms",
    "local_path",
    "location_of",
    "location_to_read",
    "range_ms",
]

Path_: TypeAlias = str | os.PathLike[str] | Uri
Time: TypeAlias = datetime | str

_EPOCH = datetime.fromtimestamp(0, UTC)
_LAST = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ZONE_HINT = "give it a time zone, such as datetime(2026, 11, 22, 14, tzinfo=UTC)"


def location_of(path: Path_, what: str = "paths") -> Location:
    """Return a path or URI that a caller gave. Raises `ConfigError`; `what` names the argument."""
    if isinstance(path, Uri):
        return path
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ArgumentError(f"{what} must be a path or URI, got {path!r}")
    if not _is_name(str(path)):
        raise ArgumentError(f"{what} must be valid Unicode without a null character, got {str(path)!r}")
    return location(path) if isinstance(path, str) else Path(path)


def _is_name(path: str) -> bool:
    with suppress(UnicodeEncodeError):
        return b"\0" not in os.fsencode(path)
    return False


def location_to_read(path: Path_, what: str = "paths") -> Location:
    """Return a path or URI of a directory to read, as `location_of` does. Raises `ConfigError` if it is too long."""
    found = location_of(path, what)
    try:
        if isinstance(found, Path):
            os.lstat(found)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(
                f"cannot use {str(path)!r} as {what}: {error.strerror}", hint="give a shorter path"
            ) from None
    return found


def local_path(path: Path_, what: str) -> Path:
    """Return a path on this machine that a caller gave. Raises `ConfigError`; `what` names the argument."""
    found = location_of(path, what)
    if not isinstance(found, Path):
        raise ArgumentError(f"{what} must be a path on this machine, got {path!r}")
    return found


def check_number(value: float, what: str, least: float, most: float) -> None:
    """Check a number that a caller gave. Raises `ArgumentError`; `what` names the argument."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ArgumentError(f"{what} must be a number from {least} to {most}, got {value!r}")


def check_whole(value: int, what: str, least: int, most: int = 2**31 - 1) -> None:
    """Check a whole number that a caller gave. Raises `ArgumentError`; `what` names the argument."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ArgumentError(f"{what} must be a whole number from {least} to {most}, got {value!r}")


def _time_ms(time: Time, what: str = "start") -> int:
    """Return a time in ms since 1970; a text without an offset is UTC.

    Raises `ConfigError`; `what` names the argument.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ConfigError(f"{what} must have a time zone, got {time!r}", hint=_ZONE_HINT)
        return _ms_of(time, what)
    if isinstance(time, str):
        try:
            found = datetime.fromisoformat(time)
        except ValueError:
            raise ArgumentError(
                f"{what} must be a date and time such as 2026-11-22T14:00, got {time!r}"
            ) from None
        return _ms_of(found if found.tzinfo else found.replace(tzinfo=UTC), what)
    raise ArgumentError(f"{what} must be a datetime or a text such as 2026-11-22T14:00, got {time!r}")


def range_ms(
    start: Time | None, end: Time | None, last: timedelta | str | None
) -> tuple[int | None, int | None, int | None]:
    """Return a range of time in ms: where it begins and ends, or how long the last part is. Raises `ConfigError`."""
    from_ms = None if start is None else _time_ms(start)
    to_ms = None if end is None else _time_ms(end, "end")
    if last is not None and (from_ms, to_ms) != (None, None):
        raise ConfigError("last cannot be used with start and end", hint="give either last, or start and end")
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise ConfigError(
            f"end must be later than start, got {start} and {end}",
            hint="rows at the time of end are not read",
        )
    return from_ms, to_ms, None if last is None else _last_ms(last)


def duration_ms(text: str) -> int | None:
    """Return a length of time such as 90s, 15m, 6h or 2d in ms; None: it is none."""
    match = _LAST.fullmatch(text)
    return None if match is None else int(match[1]) * _UNIT_MS[match[2]]


def _ms_of(time: datetime, what: str) -> int:
    try:
        found = (time - _EPOCH) // timedelta(milliseconds=1)
    except (ArithmeticError, ValueError, TypeError):
        found = -1
    if found < 0:
        raise ArgumentError(f"{what} must be a time since 1970, got {str(time)!r}")
    return found


def _last_ms(last: timedelta | str) -> int:
    if isinstance(last, str) and (last_ms := duration_ms(last)) is not None:
        return last_ms
    if not isinstance(last, timedelta) or last < timedelta(milliseconds=1):
        raise ArgumentError(
            f"last must be a timedelta above 0, or a text such as 90s, 15m, 6h or 2d, got {last!r}"
        )
    return last // timedelta(milliseconds=1)
