"""Amounts of quotas as text, for terminals and pages."""

import math

__all__ = ["NOTHING", "amount_text", "used_text"]

NOTHING = "–"
"""Stands for an amount that does not exist."""
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def amount_text(value: float | None, unit: str) -> str:
    """Return a rate or a limit, short.

    >>> amount_text(1536.0, "bytes per second"), amount_text(12.5, "percent of one thread")
    ('1.5 KiB/s', '12.5 %')
    >>> amount_text(2.0, "mutations per second"), amount_text(None, "bytes per second")
    ('2/s', '–')
    """
    if value is None:
        return NOTHING
    if unit.startswith("bytes"):
        at = 0
        while abs(round(value, min(at, 1))) >= _STEP and at < len(_BYTE_UNITS) - 1:
            value /= _STEP
            at += 1
        return f"{value:.0f} B/s" if at == 0 else f"{value:.1f} {_BYTE_UNITS[at]}/s"
    return f"{value:.4g} %" if unit.startswith("percent") else f"{value:.4g}/s"


def used_text(utilization: float | None) -> str:
    """Return a utilization in percent.

    >>> used_text(0.5), used_text(None), used_text(1234.5)
    ('50 %', '–', '>999 %')
    """
    if utilization is None:
        return NOTHING
    percent = 100 * utilization
    return f"{percent:.0f} %" if math.isfinite(percent) and percent < 999.5 else ">999 %"
