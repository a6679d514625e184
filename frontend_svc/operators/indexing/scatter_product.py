"""Products at indices that are data: by comparison, for accelerators have no atomic product."""

from __future__ import annotations

from frontend_svc.operators.core.coordinates import numbers_along
from frontend_svc.operators.core.prims_builder import PrimsBuilder, as_typed
from frontend_svc.operators.core.registry import NotDecomposedError
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.indexing.combining import combined_dtype
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr

MAX_POSITIONS = 256
"""The largest number of positions that each update is compared with."""


def scatter_product(
    builder: PrimsBuilder, base: Tensor, axis: int, positions: Tensor, updates: Tensor
) -> Tensor:
    """Elements along an axis times the updates at their positions.

    Shapes: positions: as the updates, or a vector along the axis; updates: not larger than the
    base,
        except along the axis.

    Raises:
        NotDecomposedError: the axis is too long, or of symbolic extent.
    """
    extent = base.shape[axis]
    if not extent.is_constant or extent.constant > MAX_POSITIONS:
        raise NotDecomposedError(
            f"products over {extent} positions; at most {MAX_POSITIONS} decompose"
        )
    wide = combined_dtype(base.dtype)
    rest = [k for k in range(base.rank) if k != axis]
    order = [*rest, axis]
    rows = builder.permute(builder.convert(updates, wide), order)
    named = builder.permute(positions, order) if positions.rank == base.rank else positions
    named = builder.expand(named, rows.shape)
    numbers = builder.reshape(builder.iota(extent), (extent, ONE))
    lead, count = rows.shape[:-1], rows.shape[-1]
    is_named = builder.apply("eq", builder.reshape(named, (*lead, ONE, count)), numbers)
    factors = builder.where(is_named, builder.reshape(rows, (*lead, ONE, count)), 1)
    products = builder.reduce("prod", factors, (factors.rank - 1,))
    # Elements without updates stay equal to the bit; counting also checks the positions.
    products = _padded(builder, products, 1, base, rest)
    counts = _padded(builder, _counts(builder, named, extent), 0, base, rest)
    x = builder.permute(builder.convert(base, wide), order)
    found = builder.where(builder.apply("gt", counts, 0), builder.apply("mul", x, products), x)
    back = sorted(range(base.rank), key=lambda k: order[k])
    return builder.convert(builder.permute(found, back), base.dtype)


def _counts(builder: PrimsBuilder, named: Tensor, extent: Expr) -> Tensor:
    """The number of updates at each position of the last axis."""
    lead = named.shape[:-1]
    axes = tuple(range(named.rank))
    picks = [*(numbers_along(builder, named.shape, axis) for axis in axes[:-1]), named]
    zeros, ones = (
        builder.full(0, DType.I32, (*lead, extent)),
        builder.full(1, DType.I32, named.shape),
    )
    return builder.scatter(zeros, (axes, picks), ones, "add")


def _padded(builder: PrimsBuilder, x: Tensor, value: int, base: Tensor, rest: list[int]) -> Tensor:
    """The result of smaller updates, padded to the extents of the base."""
    high = [builder.extents.simplified(base.shape[k] - x.shape[n]) for n, k in enumerate(rest)]
    if all(amount == 0 for amount in high):
        return x
    low = (ZERO,) * x.rank
    return builder.prim("pad", x, high=(*high, ZERO), low=low, value=as_typed(value, x.dtype))
