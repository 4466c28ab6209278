"""Numbers as Java reads and writes them, where clients see it.

>>> read_double("0x1p-1"), double_text(1e300), double_text(0.0001)
(0.5, '1.0E300', '1.0E-4')

Follows: `Double.parseDouble`, `Double.toString`, `Long.parseLong`.
"""

import math
import re
from decimal import Decimal

__all__ = ["double_text", "read_double", "read_number"]

_LONGEST_NUMBER = 20  # sign and digits of the smallest long
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_LIMITS = re.compile(r"[+-]?(?:NaN|Infinity)")


def read_double(text: str) -> float:
    """Return a double. Raises `ValueError`."""
    if _LIMITS.fullmatch(text):
        return float(text)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD"))
    if not _HEXADECIMAL.fullmatch(text):
        raise ValueError(text)
    mantissa, exponent = text.lower().split("p")
    try:
        return float.fromhex(f"{mantissa}p{exponent.rstrip('fd')}")
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


def read_number(text: str, most: int) -> int:
    """Return a whole number up to `most`, down to what two's complement holds beside it. Raises `ValueError`."""
    if not text.lstrip("+-").isdecimal() or len(text) > _LONGEST_NUMBER:
        raise ValueError(text)
    number = int(text)
    if not -most - 1 <= number <= most:
        raise ValueError(text)
    return number


def double_text(number: float) -> str:
    """Return what Java writes for a double."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return str(number)
    sign, digits, exponent = Decimal(str(number)).normalize().as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{int(exponent) + len(digits) - 1}"
