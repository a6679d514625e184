"""An estimate of the time that compiling a kernel takes, from its operations.

Each vendor's numbers are a fact of `kernelfarm.targets` (`CompileCost`): processor time in
milliseconds that one operation adds to one variant. They were measured with chains of 1 and 4
operations over 1,024 f32 elements (eight for each thread) on a cloud machine of two cores, with
Triton 3.9.0, its ptxas 12.9 and llvmlite 0.50. An operation on f64 takes about twice as long. The
CPU's numbers for a kernel and a plain operation are fitted to the kernels of eight models, which
take 28 ms on average there.

The estimate decides the order of jobs and whether mathematical functions are called. If it is
wrong, the measured time corrects it (`codegen_svc/worker`).
"""

from __future__ import annotations

from typing import Final

from codegen_svc.powers import is_multiplied
from kernelfarm.dtypes import DType
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.loop_ir import Compute, Kernel, Literal, Reduce, Scan, Sort
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import CompileCost

# Triton unrolls a sort or scan along its row: ptxas took seconds for five scans of 1,024 elements.
_SCAN_MS, _SORT_MS, _REDUCE_MS = 400.0, 1500.0, 30.0
# How many times cheaper they are as loops.
_LOOP_SAVING: Final = 20
# A function that is called costs its call, in blocks of one element for each thread.
_CALLED_MS: Final = 12.0
# If the copies of its functions would take longer than this, a kernel calls them. The kernels of
# models stay below: the largest of them use a handful of functions.
_CALLS_ABOVE_S: Final = 2.0
# Kernels of users, by the characters of their source: Triton's tutorials took 0.1 to 0.6.
_CHARACTER_MS: Final = 0.3
_USER_VARIANTS: Final = 2


def inlined_math_s(kernel: Kernel, cost: CompileCost) -> float:
    """The time that a kernel's mathematical functions add to one variant, if each use is a copy."""
    table = dict(cost.math_ms)
    return sum(_math_ms(kernel, compute, table) for compute in _computes(kernel)) / 1e3


def calls_math(kernel: Kernel, cost: CompileCost) -> bool:
    """True if the kernel should call its mathematical functions instead of holding copies."""
    return cost.calls_math and inlined_math_s(kernel, cost) > _CALLS_ABOVE_S


def estimated_cost_s(kernel: AnyKernel, cost: CompileCost) -> float:
    """The processor time that compiling all variants of a kernel takes."""
    if isinstance(kernel, UserKernel):
        return _USER_VARIANTS * (cost.base_ms + _CHARACTER_MS * len(kernel.source)) / 1e3
    math_s = inlined_math_s(kernel, cost)
    if calls_math(kernel, cost):
        table = dict(cost.math_ms)
        math_s = sum(_CALLED_MS for c in _computes(kernel) if _math_ms(kernel, c, table)) / 1e3
    plain_s = cost.plain_ms * len(kernel.body) / 1e3
    wide_s = sum(_row_ms(statement) for statement in kernel.body) / 1e3
    if not cost.unrolls_rows:
        wide_s /= _LOOP_SAVING
    return cost.variants * (cost.base_ms / 1e3 + math_s + plain_s + wide_s)


def _computes(kernel: Kernel) -> list[Compute]:
    return [statement for statement in kernel.body if isinstance(statement, Compute)]


def _math_ms(kernel: Kernel, compute: Compute, table: dict[str, float]) -> float:
    if not compute.dtype.is_float or _is_product(kernel, compute):
        return 0.0
    return table.get(compute.op, 0.0) * (2.0 if compute.dtype is DType.F64 else 1.0)


def _is_product(kernel: Kernel, compute: Compute) -> bool:
    """True if emitters write the power as multiplications or as a root."""
    if compute.op != "pow":
        return False
    exponent = kernel.body[compute.operands[1]]
    if not isinstance(exponent, Literal):
        return False
    value = float(exponent.value)
    return value == 0.5 or is_multiplied(value)


def _row_ms(statement: object) -> float:
    if isinstance(statement, Sort):
        return _SORT_MS
    if isinstance(statement, Scan):
        return _SCAN_MS
    return _REDUCE_MS if isinstance(statement, Reduce) else 0.0
