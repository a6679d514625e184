"""8-bit floats on accelerators: bit patterns in `uint8`, widened to f32 and rounded back.

Integer arithmetic gives the same results on all chips, those of PyTorch on a CPU. Some chips have
an instruction that widens two of them to f16, which gives these results, too. They are for storage:
kernels may only move and convert them.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.loop_ir import Compute, Kernel, Load, Store, StoreMode, operands_of

FLOATS_8 = frozenset({DType.F8E4M3FN, DType.F8E5M2})

_MOVING_OPS = frozenset({"convert", "where"})


def widened(text: str, dtype: DType, *, has_instruction: bool = False) -> str:
    """An 8-bit float as f32; `has_instruction`: the chip widens it by an instruction."""
    return f"kf_{'extend' if has_instruction else 'widen'}_{dtype.value}({text})"


def narrowed(text: str, dtype: DType) -> str:
    """A number of any other type as an 8-bit float, through f32."""
    return f"kf_narrow_{dtype.value}({text}.to(tl.float32))"


def check_float8_is_storage(kernel: Kernel, dtypes: Iterable[DType | None], target: str) -> None:
    """Checks that a kernel only moves and converts 8-bit floats; `dtypes` are its values' types.

    Raises:
        KernelRejectedError: a statement computes with an 8-bit float.
    """
    held = [dtype in FLOATS_8 for dtype in dtypes]
    for statement in kernel.body:
        if not any(held[operand] for operand in operands_of(statement)):
            continue
        match statement:
            case Load() | Store(mode=StoreMode.SET):
                continue
            case Compute(op=op) if op in _MOVING_OPS:
                continue
            case Compute(op=op):
                what = op
            case _:
                what = type(statement).__name__.lower()
        raise KernelRejectedError(
            f"{what} of an 8-bit float is not supported on {target}: they are stored and converted"
        )


def _narrow_text(dtype: DType, mantissa: int, bias: int, overflow: int, largest: int) -> str:
    """A function that rounds to nearest even.

    `overflow` is the smallest f32 pattern that becomes `largest`.
    """
    dropped = 23 - mantissa
    # Adding this power of two aligns the bits of a denormal at the bottom, rounded by the FPU.
    base = 127 - bias + dropped + 1
    rebase = ((bias - 127) << 23) + (1 << (dropped - 1)) - 1
    return f"""
def kf_narrow_{dtype.value}(x):
    pattern = x.to(tl.int32, bitcast=True)
    magnitude = pattern & 0x7FFFFFFF
    aligned = magnitude.to(tl.float32, bitcast=True) + {2.0 ** (base - 127)!r}
    denormal = aligned.to(tl.int32, bitcast=True) - {base << 23}
    normal = (magnitude + {rebase} + ((magnitude >> {dropped}) & 1)) >> {dropped}
    result = tl.where(magnitude < {(128 - bias) << 23}, denormal, normal)
    result = tl.where(magnitude >= {overflow}, {largest}, result)
    result = tl.where(magnitude > 0x7F800000, 0x7F, result)
    return (result | ((pattern >> 24) & 0x80)).to(tl.uint8)
"""


FLOAT8_HELPERS: dict[str, str] = {
    # 1 sign, 5 exponent (bias 15), 2 mantissa bits: the upper half of an f16.
    "kf_widen_f8e5m2": """
def kf_widen_f8e5m2(x):
    return (x.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
""",
    # 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, all ones is NaN. The same bits of
    # an f16 (bias 15) are 2^8 times less, also those of subnormal numbers; all ones would be 480.
    "kf_widen_f8e4m3fn": """
def kf_widen_f8e4m3fn(x):
    shifted = (x.to(tl.int8, bitcast=True).to(tl.int16) << 7) & -0x4080
    value = shifted.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where(tl.abs(value) == 480.0, float("nan"), value)
""",
    # PTX ISA, "cvt": .f16x2 from .e4m3x2 and .e5m2x2, sm_89 or later. f16 has all their values.
    "kf_extend_f8e5m2": """
def kf_extend_f8e5m2(x):
    return x.to(tl.float8e5, bitcast=True).to(tl.float16).to(tl.float32)
""",
    "kf_extend_f8e4m3fn": """
def kf_extend_f8e4m3fn(x):
    return x.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(tl.float32)
""",
    "kf_narrow_f8e5m2": _narrow_text(DType.F8E5M2, 2, 15, 143 << 23, 0x7C),
    # 464 and all larger numbers become the largest number, as in PyTorch 2.13.
    "kf_narrow_f8e4m3fn": _narrow_text(DType.F8E4M3FN, 3, 7, 0x43E80000, 0x7E),
}
