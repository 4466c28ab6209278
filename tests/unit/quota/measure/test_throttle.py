"""Throttle formulas: Java's rounding, narrowing and division by zero."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.sampled_rate import java_int, java_round

from tidegate.quota.measure.throttle import (
    MAX_INT64,
    narrow_to_int32,
    rate_throttle_ms,
    round_half_up,
    saturate_to_int32,
    tokens_throttle_ms,
)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0.5, 1),
        (1.5, 2),
        (2.5, 3),
        (-0.5, 0),
        (-1.5, -1),
        (0.49999999999999994, 0),
        (math.nan, 0),
        (math.inf, MAX_INT64),
        (-math.inf, -(2**63)),
        (1e300, MAX_INT64),
        (2.0**53 + 2, 2**53 + 2),
    ],
)
def test_ties_go_up_and_large_values_saturate(value: float, rounded: int) -> None:
    """The examples of B§2.1, and the ends of the range."""
    assert round_half_up(value) == rounded


@given(st.floats())
def test_rounding_equals_exact_arithmetic(value: float) -> None:
    """Every double is rounded as with exact fractions."""
    assert round_half_up(value) == java_round(value)


@given(st.integers(-(2**63), 2**63 - 1))
def test_narrowing_equals_modular_arithmetic(value: int) -> None:
    """Every long is narrowed as modulo 2**32."""
    assert narrow_to_int32(value) == java_int(value)


@given(st.floats())
def test_doubles_are_cut_off_and_saturate(value: float) -> None:
    """A whole part within 32 bits; infinities are the ends of the range, not-a-number is 0."""
    expected = 0 if math.isnan(value) else math.trunc(max(-(2.0**31), min(2.0**31 - 1, value)))
    assert saturate_to_int32(value) == expected


@given(st.floats(0, 1e12), st.floats(0.001, 1e12), st.integers(1, 10**6))
def test_delay_is_the_rounded_formula(rate: float, bound: float, window_ms: int) -> None:
    """The short way for usual delays rounds as the long one does."""
    assert rate_throttle_ms(rate, bound, window_ms) == java_round((rate - bound) / bound * window_ms)


@pytest.mark.parametrize(
    ("rate", "bound", "throttle_ms"),
    [(5.0, 0.0, MAX_INT64), (5.0, -0.0, -(2**63)), (0.0, 0.0, 0), (math.nan, 0.0, 0), (-1.0, 0.0, -(2**63))],
)
def test_a_bound_of_zero_is_divided_by_as_java_does(rate: float, bound: float, throttle_ms: int) -> None:
    """Only a custom callback can give such a bound: the delay is infinite."""
    assert rate_throttle_ms(rate, bound, 10_000) == throttle_ms


def test_an_overrun_beyond_32_bits_wraps() -> None:
    """The two examples of B§2.1: one comes out negative, one as an arbitrary time."""
    assert narrow_to_int32(rate_throttle_ms(3e9 / 10, 1000.0, 10_000)) == -1294977296
    assert narrow_to_int32(rate_throttle_ms(1e8 / 10, 1.0, 10_000)) == 1215742192


def test_tokens_are_earned_back_at_the_rate() -> None:
    """A balance of -80 at 10 tokens a second takes 8 s; at no tokens a second, for ever."""
    assert tokens_throttle_ms(-80.0, 10.0) == 8000
    assert tokens_throttle_ms(-80.0, 0.0) == MAX_INT64
