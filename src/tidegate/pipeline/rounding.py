"""Limits rounded up, so that what is shown or proposed throttles no more than what was found."""

import math
from decimal import Decimal

from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["exact_text", "given_text", "limit_text", "rounded_down", "rounded_up"]

_UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024), ("B", 1))
_GIVEN = (*_UNITS[:-1], ("TB", 1000**4), ("GB", 1000**3), ("MB", 1000**2), ("kB", 1000))
_PLAIN = 20  # characters that a number without an exponent may take
_FEWEST = 100  # units that a size is given in: it is rounded by less than a percent
_DIGITS = 3  # of a number that is no size
_BYTE_RATES = {QuotaType.PRODUCE.value, QuotaType.FETCH.value}


def rounded_up(quota_type: str, limit: float) -> float:
    """Return `limit` rounded up by at most a percent: a size to whole units, others to three digits.

    >>> rounded_up("Produce", 1_000_000.5), rounded_up("Request", 12.341), rounded_up("Fetch", 0.0)
    (1000448.0, 12.4, 0.0)
    """
    if quota_type in _BYTE_RATES:
        _, factor = _unit(limit)
        return float(math.ceil(limit / factor) * factor)
    if limit <= 0.0:
        return 0.0
    places = _DIGITS - 1 - math.floor(math.log10(limit))
    step = 10 ** abs(places)
    rounded = math.ceil(limit * step) / step if places >= 0 else float(math.ceil(limit / step) * step)
    return max(rounded, limit)


def rounded_down(quota_type: str, limit: float) -> float:
    """Return `limit` without the digits that `rounded_up` would round; infinity as it is.

    >>> rounded_down("Produce", 1_000_000.5), rounded_down("Request", 12.341)
    (999424.0, 12.3)
    """
    if not 0.0 < limit < math.inf:
        return limit
    if quota_type in _BYTE_RATES:
        _, factor = _unit(limit)
        return float(math.floor(limit / factor) * factor) or limit
    places = _DIGITS - 1 - math.floor(math.log10(limit))
    step = 10 ** abs(places)
    return math.floor(limit * step) / step if places >= 0 else float(math.floor(limit / step) * step)


def limit_text(quota_type: str, limit: float) -> str:
    """Return a limit, rounded up, as `quotas.yaml` takes it; a percentage with its sign.

    >>> limit_text("Produce", 1_000_000.5), limit_text("Request", 12.341), limit_text("ControllerMutation", 0.5)
    ('977KiB', '12.4 %', '0.5')
    """
    rounded = rounded_up(quota_type, limit)
    if quota_type in _BYTE_RATES:
        unit, factor = _unit(rounded)
        return f"{int(rounded) // factor}{unit}"
    text = format(Decimal(repr(rounded)), "f").removesuffix(".0")
    return f"{text} %" if quota_type == QuotaType.REQUEST.value else text


def given_text(quota_type: str, limit: float) -> str:
    """Return a limit that somebody has given: exactly, as `quotas.yaml` takes it; a percentage with its sign.

    >>> given_text("Produce", 20e6), given_text("Produce", 1234567.0), given_text("Request", 12.345)
    ('20MB', '1234567', '12.345 %')
    """
    if quota_type in _BYTE_RATES:
        whole = int(limit)
        exact = [f"{whole // factor}{unit}" for unit, factor in _GIVEN if whole and whole % factor == 0]
        return min([*exact, str(whole)], key=len)
    return f"{exact_text(limit)} %" if quota_type == QuotaType.REQUEST.value else exact_text(limit)


def exact_text(number: float) -> str:
    """Return a number with all its digits, in a form that is no longer than need be.

    >>> exact_text(12.3456789), exact_text(1234567.0), exact_text(1e300), exact_text(math.nan)
    ('12.3456789', '1234567', '1e+300', 'nan')
    """
    plain = format(Decimal(repr(number)), "f").removesuffix(".0") if math.isfinite(number) else str(number)
    return plain if len(plain) <= _PLAIN else repr(number)


def _unit(limit: float) -> tuple[str, int]:
    return next((unit for unit in _UNITS if limit >= _FEWEST * unit[1]), _UNITS[-1])
