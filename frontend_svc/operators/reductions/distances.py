"""Distances between rows of matrices, and renormalization."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor, number_of
from frontend_svc.operators.reductions.over_axes import vector_norm
from frontend_svc.operators.reductions.segments import segment_numbers
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr


@decomposes("aten._cdist_forward.default")
def cdist_forward(
    builder: PrimsBuilder, x1: Tensor, x2: Tensor, p: float, compute_mode: int | None
) -> Tensor:
    """The norms of the differences between every row of one matrix and every row of another."""
    if x1.rank < 2 or x2.rank < 2 or not builder.extents.is_same(x1.shape[-1], x2.shape[-1]):
        raise InvalidGraphError(
            f"rows of {text_of(x1.shape)} and {text_of(x2.shape)}; expected as many columns"
        )
    if x1.dtype is not x2.dtype or not x1.dtype.is_float:
        raise InvalidGraphError(f"{x1.dtype!r} and {x2.dtype!r}; expected one float type")
    rows = builder.reshape(x1, (*x1.shape[:-1], ONE, x1.shape[-1]))
    columns = builder.reshape(x2, (*x2.shape[:-2], ONE, *x2.shape[-2:]))
    difference = builder.apply("sub", builder.widened(rows), builder.widened(columns))
    return builder.convert(vector_norm(builder, difference, p, (-1,)), x1.dtype)


@decomposes("aten._euclidean_dist.default")
def euclidean_dist(builder: PrimsBuilder, x1: Tensor, x2: Tensor) -> Tensor:
    """The Euclidean distances between every row of one matrix and every row of another."""
    return cdist_forward(builder, x1, x2, 2.0, None)


@decomposes("aten._pdist_forward.default")
def pdist_forward(builder: PrimsBuilder, self: Tensor, p: float = 2.0) -> Tensor:
    """The norms of the differences of all pairs of rows, each pair once."""
    if self.rank != 2 or not self.dtype.is_float:
        raise InvalidGraphError(f"rows {self.dtype!r} {text_of(self.shape)}; expected two axes")
    count = self.shape[0]
    pairs = builder.extents.simplified(count * (count - 1) // 2)
    if builder.extents.is_negative(count - 2):
        return builder.full(0, self.dtype, (ZERO,))
    firsts, seconds = _pairs(builder, count, pairs)
    wide = builder.widened(self)
    left, right = (builder.prim("take", wide, rows, dim=0) for rows in (firsts, seconds))
    return builder.convert(
        vector_norm(builder, builder.apply("sub", left, right), p, (1,)), self.dtype
    )


def _pairs(builder: PrimsBuilder, count: Expr, pairs: Expr) -> tuple[Tensor, Tensor]:
    """The numbers of the two rows of each pair, in ascending order."""
    lengths = builder.apply("sub", number_of(count - 1), builder.iota(count))
    ends = builder.prim("cumsum", lengths, dim=0)
    first = segment_numbers(builder, ends, pairs)
    begun = builder.prim("take", builder.apply("sub", ends, lengths), first, dim=0)
    position = builder.apply("sub", builder.iota(pairs), begun)
    return first, builder.apply("add", builder.apply("add", first, position), 1)


@decomposes("aten.renorm.default")
def renorm(builder: PrimsBuilder, self: Tensor, p: Number, dim: int, maxnorm: Number) -> Tensor:
    """The slices along an axis, scaled down to a norm if theirs is larger."""
    if isinstance(maxnorm, Expr) or not self.dtype.is_float:
        raise NotDecomposedError("a norm that is a symbolic size, or of integers")
    axis = axis_of(dim, self.rank)
    rest = tuple(k for k in range(self.rank) if k != axis)
    wide = builder.widened(self)
    norm = vector_norm(builder, wide, p, rest, True) if rest else builder.prim("abs", wide)
    # PyTorch's constant, which keeps the quotient finite.
    scale = builder.apply("div", float(maxnorm), builder.apply("add", norm, 1e-7))
    factor = builder.where(builder.apply("gt", norm, float(maxnorm)), scale, 1.0)
    return builder.convert(builder.apply("mul", wide, factor), self.dtype)
