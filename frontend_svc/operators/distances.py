"""Distances between all rows of two matrices, and rows brought to a norm."""

from __future__ import annotations

from frontend_svc.operators.extents import axis_of, text_of
from frontend_svc.operators.lowering import Lowering
from frontend_svc.operators.reductions import vector_norm
from frontend_svc.operators.registry import NotDecomposedError, decomposes
from frontend_svc.operators.values import Number, Tensor
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.symbolic import ONE, Expr


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
