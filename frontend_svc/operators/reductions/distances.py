"""Distances between all rows of two matrices, and rows brought to a norm."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor, number_of
from frontend_svc.operators.reductions.over_axes import vector_norm
from frontend_svc.operators.reductions.segments import segment_numbers
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr


@decomposes("aten._cdist_forward.default")
def cdist_forward(
    op: Lowering, x1: Tensor, x2: Tensor, p: float, compute_mode: int | None
) -> Tensor:
    """The norms of the differences of all rows of the one and all rows of the other."""
    if x1.rank < 2 or x2.rank < 2 or not op.extents.is_same(x1.shape[-1], x2.shape[-1]):
        raise InvalidGraphError(
            f"rows of {text_of(x1.shape)} and {text_of(x2.shape)}; expected as many columns"
        )
    if x1.dtype is not x2.dtype or not x1.dtype.is_float:
        raise InvalidGraphError(f"{x1.dtype!r} and {x2.dtype!r}; expected one float type")
    rows = op.reshape(x1, (*x1.shape[:-1], ONE, x1.shape[-1]))
    columns = op.reshape(x2, (*x2.shape[:-2], ONE, *x2.shape[-2:]))
    difference = op.apply("sub", op.widened(rows), op.widened(columns))
    return op.convert(vector_norm(op, difference, p, (-1,)), x1.dtype)


@decomposes("aten._euclidean_dist.default")
def euclidean_dist(op: Lowering, x1: Tensor, x2: Tensor) -> Tensor:
    """The Euclidean distances of all rows of the one and all rows of the other."""
    return cdist_forward(op, x1, x2, 2.0, None)


@decomposes("aten._pdist_forward.default")
def pdist_forward(op: Lowering, self: Tensor, p: float = 2.0) -> Tensor:
    """The norms of the differences of all pairs of rows, each once."""
    if self.rank != 2 or not self.dtype.is_float:
        raise InvalidGraphError(f"rows {self.dtype!r} {text_of(self.shape)}; expected two axes")
    count = self.shape[0]
    pairs = op.extents.simplified(count * (count - 1) // 2)
    if op.extents.is_negative(count - 2):
        return op.full(0, self.dtype, (ZERO,))
    firsts, seconds = _pairs(op, count, pairs)
    wide = op.widened(self)
    left, right = (op.prim("take", wide, rows, dim=0) for rows in (firsts, seconds))
    return op.convert(vector_norm(op, op.apply("sub", left, right), p, (1,)), self.dtype)


def _pairs(op: Lowering, count: Expr, pairs: Expr) -> tuple[Tensor, Tensor]:
    """The two rows of each pair, in rising order."""
    lengths = op.apply("sub", number_of(count - 1), op.iota(count))
    ends = op.prim("cumsum", lengths, dim=0)
    first = segment_numbers(op, ends, pairs)
    begun = op.prim("take", op.apply("sub", ends, lengths), first, dim=0)
    place = op.apply("sub", op.iota(pairs), begun)
    return first, op.apply("add", op.apply("add", first, place), 1)


@decomposes("aten.renorm.default")
def renorm(op: Lowering, self: Tensor, p: Number, dim: int, maxnorm: Number) -> Tensor:
    """The parts along an axis whose norm is too large, scaled down to it."""
    if isinstance(maxnorm, Expr) or not self.dtype.is_float:
        raise NotDecomposedError("a norm that is a symbolic size")
    axis = axis_of(dim, self.rank)
    rest = tuple(k for k in range(self.rank) if k != axis)
    wide = op.widened(self)
    norm = vector_norm(op, wide, p, rest, True) if rest else op.prim("abs", wide)
    # PyTorch's own constant, which keeps the quotient finite.
    scale = op.apply("div", float(maxnorm), op.apply("add", norm, 1e-7))
    factor = op.where(op.apply("gt", norm, float(maxnorm)), scale, 1.0)
    return op.convert(op.apply("mul", wide, factor), self.dtype)
