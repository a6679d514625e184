"""The prim `scatter`, and how updates combine with the elements that they name.

Updates that combine (add, multiply, extrema) are computed in the computing type, and the result is
rounded once.
"""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.values import Number, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_MODES = {
    "sum": "add",
    "mean": "add",
    "amax": "max",
    "amin": "min",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
}
_SMALL = frozenset({DType.BOOL, DType.U8, DType.I8, DType.I16})


def mode_of(reduce: str) -> str:
    """The mode of `scatter` for a reduction by PyTorch's name.

    Raises:
        InvalidGraphError: an unknown reduction.
    """
    if reduce not in _MODES:
        raise InvalidGraphError(f"reduce={reduce!r}; expected sum, prod, mean, amax or amin")
    return _MODES[reduce]


def neutral_of(mode: str, dtype: DType) -> Number:
    """The number that changes nothing when it is combined with an element."""
    neutral = {"add": 0, "mul": 1}
    return neutral[mode] if mode in neutral else _extreme(dtype, is_top=mode == "min")


def combined_dtype(dtype: DType) -> DType:
    """The type in which elements of a type are combined."""
    return DType.I32 if dtype in _SMALL else dtype.compute_dtype


def scattered(
    builder: PrimsBuilder,
    mode: str,
    base: Tensor,
    positions: tuple[tuple[int, ...], list[Tensor]],
    updates: Tensor,
    *,
    is_order_free: bool = False,
) -> Tensor:
    """The base with updates at positions; arguments as those of `PrimsBuilder.scatter`."""
    wide = base.dtype if mode == "set" else combined_dtype(base.dtype)
    x, new = builder.convert(base, wide), builder.convert(updates, wide)
    found = builder.scatter(x, positions, new, mode, is_order_free=is_order_free)
    if mode in ("min", "max") and wide.is_float:
        # A NaN in the base stays, whatever its sign: atomic extrema compare bits.
        found = builder.where(builder.apply("isnan", x), x, found)
    return builder.convert(found, base.dtype)


def mean_of_updates(builder: PrimsBuilder, sums: Tensor, counted: Tensor) -> Tensor:
    """Sums divided by their numbers of updates; integers round down."""
    counts = builder.apply("maximum", counted, 1)
    if not sums.dtype.is_float:
        quotient = builder.apply("floor_div", builder.convert(sums, DType.I64), counts)
        return builder.convert(quotient, sums.dtype)
    wide = builder.widened(sums)
    return builder.convert(
        builder.apply("div", wide, builder.convert(counts, wide.dtype)), sums.dtype
    )


def _extreme(dtype: DType, *, is_top: bool) -> Number:
    if dtype.is_float:
        return float("inf") if is_top else float("-inf")
    if dtype is DType.BOOL:
        return is_top
    bits = 8 * dtype.itemsize_bytes
    if dtype is DType.U8:
        return 255 if is_top else 0
    return (1 << (bits - 1)) - 1 if is_top else -(1 << (bits - 1))
