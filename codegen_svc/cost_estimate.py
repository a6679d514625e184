"""How long compiling a kernel will take, told from its operations before it is compiled.

The numbers are processor time in milliseconds for one operation in one variant, over what the first
operation costs: from chains of 1 and 4 operations over 1,024 f32 elements (eight for each thread),
each about twice as long for f64, on a cloud machine of two cores with Triton 3.9.0, its ptxas 12.9
and llvmlite 0.50. They decide who goes first and whether functions are called; a kernel that is
misjudged is found out by the clock.
"""

from __future__ import annotations

from typing import Final

from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Compute, Kernel, Literal, Reduce, Scan, Sort

_NVIDIA_MS: Final = {
    **dict.fromkeys(("expm1", "log", "log2", "log10", "log1p", "asinh", "acosh", "atanh"), 45.0),
    **dict.fromkeys(("sin", "cos"), 140.0),
    **dict.fromkeys(("asin", "acos", "atan", "atan2"), 150.0),
    **dict.fromkeys(("sinh", "cosh", "tanh", "erf", "erfc"), 40.0),
    **dict.fromkeys(("floor_div", "mod_floor", "fmod"), 90.0),
    "tan": 610.0,
    "pow": 350.0,
}
_AMD_MS: Final = {
    **dict.fromkeys(("expm1", "log10", "log1p", "sinh", "cosh", "acosh"), 25.0),
    **dict.fromkeys(("sin", "cos"), 110.0),
    **dict.fromkeys(("asin", "acos", "atan2"), 130.0),
    **dict.fromkeys(("atan", "tanh", "asinh", "atanh", "erf", "erfc"), 60.0),
    **dict.fromkeys(("floor_div", "mod_floor", "fmod"), 80.0),
    "tan": 220.0,
    "pow": 370.0,
}
_CPU_MS: Final = {
    **dict.fromkeys(("tan", "sin", "cos", "pow", "erf", "erfc", "atan2", "asin", "acos"), 15.0),
    **dict.fromkeys(("floor_div", "mod_floor", "fmod", "exp", "log", "tanh"), 8.0),
}
_TABLES: Final = {"cuda": _NVIDIA_MS, "rocm": _AMD_MS, "cpu": _CPU_MS}

_PLAIN_MS: Final = {"cuda": 3.0, "rocm": 3.0, "cpu": 1.5, "ascend": 1.0}
_BASE_MS: Final = {"cuda": 60.0, "rocm": 40.0, "cpu": 20.0, "ascend": 150.0}
# Triton unrolls what sorts and scans do along a row; five scans of 1,024 took ptxas seconds.
_SCAN_MS, _SORT_MS, _REDUCE_MS = 400.0, 1500.0, 30.0
_VARIANTS: Final = {"cuda": 3, "rocm": 3, "cpu": 1, "ascend": 2}
# Powers up to this are multiplied out.
_MAX_MULTIPLICATIONS: Final = 64
# A called function costs its call, in blocks of one element for each thread.
_CALLED_MS: Final = 12.0


def inlined_math_s(kernel: Kernel, vendor: str) -> float:
    """What the mathematical functions of a kernel cost one variant if each use is a copy."""
    table = _TABLES.get(vendor, {})
    return sum(_weight(kernel, compute, table) for compute in _computes(kernel)) / 1e3


def estimated_cost_s(kernel: Kernel, vendor: str, *, calls_above_s: float = 2.0) -> float:
    """Processor time that compiling all variants of a kernel will take."""
    math_s = inlined_math_s(kernel, vendor)
    if vendor in {"cuda", "rocm"} and math_s > calls_above_s:
        table = _TABLES[vendor]
        math_s = sum(_CALLED_MS for c in _computes(kernel) if _weight(kernel, c, table)) / 1e3
    plain_s = _PLAIN_MS.get(vendor, 3.0) * len(kernel.body) / 1e3
    wide_s = sum(_row_ms(statement) for statement in kernel.body) / 1e3
    if vendor == "cpu":
        wide_s /= 20  # its loops are not unrolled
    base_s = _BASE_MS.get(vendor, 50.0) / 1e3
    return _VARIANTS.get(vendor, 2) * (base_s + math_s + plain_s + wide_s)


def _computes(kernel: Kernel) -> list[Compute]:
    return [statement for statement in kernel.body if isinstance(statement, Compute)]


def _weight(kernel: Kernel, compute: Compute, table: dict[str, float]) -> float:
    if not compute.dtype.is_float or _is_product(kernel, compute):
        return 0.0
    return table.get(compute.op, 0.0) * (2.0 if compute.dtype is DType.F64 else 1.0)


def _is_product(kernel: Kernel, compute: Compute) -> bool:
    """True for a power that emitters write as multiplications or a root."""
    if compute.op != "pow":
        return False
    exponent = kernel.body[compute.operands[1]]
    if not isinstance(exponent, Literal):
        return False
    value = float(exponent.value)
    return value == 0.5 or (value.is_integer() and abs(value) <= _MAX_MULTIPLICATIONS)


def _row_ms(statement: object) -> float:
    if isinstance(statement, Sort):
        return _SORT_MS
    if isinstance(statement, Scan):
        return _SCAN_MS
    return _REDUCE_MS if isinstance(statement, Reduce) else 0.0
