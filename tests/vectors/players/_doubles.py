"""Doubles of the vector files: pairs `[number, "bits"]`, of which the 16 hex digits are the truth."""

import math
import re
import struct
from dataclasses import dataclass

__all__ = ["Double", "decode", "encode", "normalise"]

_BITS = re.compile(r"[0-9a-f]{16}")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, slots=True)
class Double:
    """A double that is equal to another one when their bits are equal, or when both are NaN."""

    bits: str

    def __repr__(self) -> str:
        """Show the number and the bits that are compared."""
        return f"{_from_bits(self.bits)!r} ({self.bits})"


def decode(pair: list) -> float:
    """Return the double that a pair of a vector file stands for.

    >>> decode([0.039999999999999994, "3fa47ae147ae147a"])
    0.039999999999999994
    """
    if not _is_pair(pair):
        raise ValueError(f"expected [number, 16 hex digits], got {pair!r}")
    return _from_bits(pair[1])


def encode(value: float) -> Double:
    """Return `value` in the form that is compared; every NaN is the same one."""
    if math.isnan(value):
        return Double("7ff8000000000000")
    return Double(struct.pack(">d", value).hex())


def normalise(tree: object) -> object:
    """Return `tree` with pairs and floats turned into `Double`, tuples into lists; everything else stays."""
    if isinstance(tree, float):
        return encode(tree)
    if isinstance(tree, dict):
        return {key: normalise(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return encode(decode(tree)) if _is_pair(tree) else [normalise(value) for value in tree]
    return tree


def _is_pair(tree: object) -> bool:
    if not isinstance(tree, list) or len(tree) != 2:
        return False
    number, bits = tree
    if not isinstance(bits, str) or not _BITS.fullmatch(bits):
        return False
    return number in _NOT_FINITE if isinstance(number, str) else type(number) in (int, float)


def _from_bits(bits: str) -> float:
    return struct.unpack(">d", bytes.fromhex(bits))[0]
