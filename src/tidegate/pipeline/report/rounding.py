"""Limits rounded up, so that a limit that is shown or proposed throttles no more than the one that was found."""

import math
from decimal import ROUND_CEILING, Decimal

from tidegate.config.quotas_text import size_text
from tidegate.pipeline.report.names import BYTE_QUOTAS
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "chosen_up",
    "exact_text",
    "given_text",
    "limit_text",
    "needed_text",
    "rounded_down",
    "rounded_up",
]

_UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024), ("B", 1))
_DECIMAL_UNITS = (("TB", 1000**4), ("GB", 1000**3), ("MB", 1000**2), ("kB", 1000), ("B", 1))
_CHOSEN = (*range(10, 21), 22, 25, 28, 30, 32, 35, 38, 40, 45, *range(50, 100, 5))
"""The first two digits of numbers that people choose; from one to the next it is at most 14 %."""
_PLAIN = 20  # characters that a number without an exponent may take
_FEWEST = 100  # units that a size is given in: it is rounded by less than a percent
_DIGITS = 3  # of a number that is no size


def rounded_up(quota_type: str, limit: float) -> float:
    """Return `limit` rounded up by at most a percent: a size to whole units, others to three digits.

    >>> rounded_up("Produce", 1_000_000.5), rounded_up("Request", 12.341), rounded_up("Fetch", 0.0)
    (1000448.0, 12.4, 0.0)
    """
    if quota_type in BYTE_QUOTAS:
        _, factor = _unit(limit)
        return float(math.ceil(limit / factor) * factor)
    if limit <= 0.0:
        return 0.0
    places = _DIGITS - 1 - math.floor(math.log10(limit))
    step = 10 ** abs(places)
    rounded = math.ceil(limit * step) / step if places >= 0 else float(math.ceil(limit / step) * step)
    return max(rounded, limit)


def chosen_up(quota_type: str, limit: float) -> float:
    """Return the next number, from `limit` on, that a person would choose: at most 14 % more.

    The number begins with digits of `_CHOSEN`; sizes are whole bytes.

    >>> chosen_up("Produce", 11_300_000.5), chosen_up("Request", 12.341), chosen_up("ControllerMutation", 0.51)
    (12000000.0, 13.0, 0.55)
    """
    if not 0.0 < limit < math.inf:
        return limit
    power = math.floor(math.log10(limit)) - 1
    found = (Decimal(digits).scaleb(power + more) for more in (0, 1) for digits in _CHOSEN)
    chosen = next(value for value in found if float(value) >= limit)
    return float(chosen.to_integral_value(ROUND_CEILING) if quota_type in BYTE_QUOTAS else chosen)


def rounded_down(quota_type: str, limit: float) -> float:
    """Return `limit` with three digits, the others cut off; a size of less than a kilobyte in whole bytes.

    >>> rounded_down("Produce", 1_666_666.6), rounded_down("Request", 12.341)
    (1660000.0, 12.3)
    """
    if not 0.0 < limit < math.inf:
        return limit
    places = _DIGITS - 1 - math.floor(math.log10(limit))
    if quota_type in BYTE_QUOTAS:
        places = min(places, 0)
    step = 10 ** abs(places)
    rounded = math.floor(limit * step) / step if places >= 0 else float(math.floor(limit / step) * step)
    return rounded or limit


def needed_text(quota_type: str, limit: float) -> str:
    """Return a limit, rounded up to three digits, in the units of `chosen_up`; a percentage with its sign.

    >>> needed_text("Produce", 3_029_321.0), needed_text("Fetch", 52_577.2), needed_text("Request", 12.341)
    ('3.03MB', '52.6kB', '12.4 %')
    """
    if quota_type not in BYTE_QUOTAS:
        return limit_text(quota_type, limit)
    unit, factor = next(
        ((unit, factor) for unit, factor in _DECIMAL_UNITS if limit >= factor), _DECIMAL_UNITS[-1]
    )
    amount = max(0.0, limit) / factor
    places = max(0, _DIGITS - 1 - math.floor(math.log10(amount))) if amount else 0
    digits = 0 if factor == 1 else places
    return f"{Decimal(math.ceil(amount * 10**digits)).scaleb(-digits).normalize():f}{unit}"


def limit_text(quota_type: str, limit: float) -> str:
    """Return a limit, rounded up, as `quotas.yaml` takes it; a percentage with its sign.

    >>> limit_text("Produce", 1_000_000.5), limit_text("Request", 12.341), limit_text("ControllerMutation", 0.5)
    ('977KiB', '12.4 %', '0.5')
    """
    rounded = rounded_up(quota_type, limit)
    if quota_type in BYTE_QUOTAS:
        unit, factor = _unit(rounded)
        return f"{int(rounded) // factor}{unit}"
    text = format(Decimal(repr(rounded)), "f").removesuffix(".0")
    return f"{text} %" if quota_type == QuotaType.REQUEST.value else text


def given_text(quota_type: str, limit: float) -> str:
    """Return a limit as it was given: exactly, as `quotas.yaml` takes it; a percentage with its sign.

    >>> given_text("Produce", 20e6), given_text("Produce", 1234567.0), given_text("Request", 12.345)
    ('20MB', '1234567', '12.345 %')
    """
    if quota_type in BYTE_QUOTAS:
        return size_text(int(limit))
    return f"{exact_text(limit)} %" if quota_type == QuotaType.REQUEST.value else exact_text(limit)


def exact_text(number: float) -> str:
    """Return a number with all its digits, in its shortest form.

    >>> exact_text(12.3456789), exact_text(1234567.0), exact_text(1e300), exact_text(math.nan)
    ('12.3456789', '1234567', '1e+300', 'nan')
    """
    plain = format(Decimal(repr(number)), "f").removesuffix(".0") if math.isfinite(number) else str(number)
    return plain if len(plain) <= _PLAIN else repr(number)


def _unit(limit: float) -> tuple[str, int]:
    return next((unit for unit in _UNITS if limit >= _FEWEST * unit[1]), _UNITS[-1])
