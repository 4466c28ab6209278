"""All functions over flat state, ready to be compiled: what a replay decides is what the live engine decides.

The functions call one another by name, and a compiled function can only call compiled ones. `compile_kernel`
therefore makes a second set of the same functions that see each other's compiled forms. The engine itself
imports no compiler; the pipeline hands one in:

    kernel = compile_kernel(numba.njit)
    floats = numpy.zeros((entities, FLOAT_SLOTS + samples + 1))
    ints = numpy.zeros((entities, INT_SLOTS + 2 * (samples + 1)), numpy.int64)
    kernel.rate_configure(floats[e], ints[e], bound, samples, window_ms, cap_ms)
    throttle_ms = kernel.rate_decide(floats[e], ints[e], value, now_ms)

>>> compile_kernel(lambda function: function).narrow_to_int32(2**31)
-2147483648
"""

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

from tidegate.quota.measure.bucket_kernel import BUCKET_KERNEL
from tidegate.quota.measure.rate_kernel import RATE_KERNEL
from tidegate.quota.measure.throttle import THROTTLE_KERNEL

__all__ = ["KERNEL", "compile_kernel"]

KERNEL: tuple[Callable[..., Any], ...] = THROTTLE_KERNEL + RATE_KERNEL + BUCKET_KERNEL


def compile_kernel(compiler: Callable[[Any], Any]) -> SimpleNamespace:
    """Return every function of `KERNEL`, compiled by `compiler` such as `numba.njit`, under its name."""
    names: dict[str, Any] = {}
    for function in KERNEL:
        names.update(function.__globals__)
    compiled = {
        function.__name__: compiler(FunctionType(function.__code__, names, function.__name__))
        for function in KERNEL
    }
    names.update(compiled)
    return SimpleNamespace(**compiled)
