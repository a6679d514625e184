"""Updates of elements that several points may name, as Triton text.

Extrema of floats are computed by atomic extrema of integers: the bits of positive floats have the
order of integers, those of negative floats the reverse order. NaN becomes a pattern beyond all
others.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.loop_ir import StoreMode

_ATOMIC = frozenset({DType.F64, DType.F32, DType.I64, DType.I32})
_ATOMIC_MODES = frozenset({StoreMode.ADD, StoreMode.MIN, StoreMode.MAX})


@dataclass(frozen=True, slots=True)
class ScatterUpdate:
    """One scattering store: pointers and values of one shape; `mask` is a name or empty."""

    mode: StoreMode
    dtype: DType
    pointers: str
    value: str
    shape: str
    mask: str
    target: str


def update_line(update: ScatterUpdate) -> str:
    """The line that updates memory.

    Raises:
        KernelRejectedError: the target has no atomic operation for it.
    """
    value = update.value
    if update.mode is StoreMode.SET:
        value = f"{value}.to(tl.uint8)" if update.dtype is DType.BOOL else value
        mask = f", mask={update.mask}" if update.mask else ""
        return f"tl.store({update.pointers}, tl.broadcast_to({value}, {update.shape}){mask})"
    mode = update.mode.value
    if update.mode not in _ATOMIC_MODES or update.dtype not in _ATOMIC:
        raise KernelRejectedError(
            f"a scatter by {mode} to {update.dtype.value} has no atomic operation on"
            f" {update.target}; run the operator in the framework there"
        )
    mask = update.mask or f"tl.full({update.shape}, True, tl.int1)"
    whole = f"tl.broadcast_to({value}, {update.shape})"
    if update.dtype.is_float and update.mode is not StoreMode.ADD:
        return f"kf_atomic_{mode}_{update.dtype.value}({update.pointers}, {whole}, {mask})"
    return f'tl.atomic_{mode}({update.pointers}, {whole}, mask={mask}, sem="relaxed")'


def atomic_helpers() -> dict[str, str]:
    """The functions for atomic extrema of floats, by name."""
    return {
        f"kf_atomic_{mode}_f{bits}": _atomic_extremum(mode, bits)
        for mode in ("max", "min")
        for bits in (32, 64)
    }


def _atomic_extremum(mode: str, bits: int) -> str:
    quiet = {32: 0x7FC00000, 64: 0x7FF8 << 48}[bits]
    nan = quiet if mode == "max" else quiet - (1 << (bits - 1))
    other = "min" if mode == "max" else "max"
    signed, unsigned = (f"tl.pointer_type(tl.{kind}{bits})" for kind in ("int", "uint"))
    return f"""
def kf_atomic_{mode}_f{bits}(pointers, value, mask):
    # NaN wins: its pattern is beyond that of every number
    pattern = tl.where(value != value, {nan}, value.to(tl.int{bits}, bitcast=True))
    pattern = pattern.to(tl.int{bits})
    tl.atomic_{mode}(
        pointers.to({signed}, bitcast=True), pattern, mask=mask & (pattern >= 0), sem="relaxed"
    )
    tl.atomic_{other}(
        pointers.to({unsigned}, bitcast=True),
        pattern.to(tl.uint{bits}, bitcast=True),
        mask=mask & (pattern < 0),
        sem="relaxed",
    )
"""
