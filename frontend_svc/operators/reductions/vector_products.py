"""Products of vectors: each element is read once, so a loop is as fast as a library."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.reductions.over_axes import vector_norm
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, as_expr


@decomposes("aten.dot.default")
def dot(builder: PrimsBuilder, self: Tensor, tensor: Tensor) -> Tensor:
    """The sum of products of two vectors."""
    return vdot(builder, self, tensor)


@decomposes("aten.vdot.default")
def vdot(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """The sum of products of two vectors."""
    if (self.rank, other.rank) != (1, 1) or self.dtype is not other.dtype:
        raise InvalidGraphError(
            f"{self.dtype!r}{text_of(self.shape)} by {other.dtype!r}{text_of(other.shape)};"
            " expected two vectors of one type"
        )
    if not builder.extents.is_same(self.shape[0], other.shape[0]):
        raise InvalidGraphError(
            f"{self.shape[0]} by {other.shape[0]} elements; expected equal extents"
        )
    if self.dtype is DType.BOOL:
        raise NotDecomposedError("a product of bools")
    product = builder.apply("mul", builder.widened(self), builder.widened(other))
    return builder.convert(builder.reduce("sum", product, (0,)), self.dtype)


@decomposes("aten.addr.default")
def addr(
    builder: PrimsBuilder,
    self: Tensor,
    vec1: Tensor,
    vec2: Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> Tensor:
    """beta * self + alpha * (outer product of two vectors); self is ignored if beta is 0."""
    if (vec1.rank, vec2.rank) != (1, 1):
        raise InvalidGraphError(f"{text_of(vec1.shape)} by {text_of(vec2.shape)}; expected vectors")
    dtype = builder.promoted(self, vec1, vec2)
    if dtype is DType.BOOL:
        return _outer_bools(builder, self, vec1, vec2, keeps=bool(beta), adds=bool(alpha))
    x, left, right = (builder.convert(t, dtype.compute_dtype) for t in (self, vec1, vec2))
    product = builder.apply("mul", builder.reshape(left, (vec1.shape[0], ONE)), right)
    if alpha != 1:
        product = builder.apply("mul", product, alpha)
    if beta == 0:
        return builder.convert(product, dtype)
    if beta != 1:
        x = builder.apply("mul", x, beta)
    return builder.convert(builder.apply("add", x, product), dtype)


def _outer_bools(
    builder: PrimsBuilder, x: Tensor, vec1: Tensor, vec2: Tensor, *, keeps: bool, adds: bool
) -> Tensor:
    product = builder.apply("logical_and", builder.reshape(vec1, (vec1.shape[0], ONE)), vec2)
    if not adds:
        product = builder.full(False, DType.BOOL, product.shape)
    return builder.apply("logical_or", x, product) if keeps else product


@decomposes("aten.linalg_cross.default")
def linalg_cross(builder: PrimsBuilder, self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of three elements."""
    if self.dtype is not other.dtype or self.rank != other.rank:
        raise InvalidGraphError(f"{self.dtype!r} by {other.dtype!r}; expected one type and rank")
    axis = axis_of(dim, self.rank)
    shape = builder.extents.broadcast([self.shape, other.shape])
    if shape[axis] != as_expr(3):
        raise InvalidGraphError(f"{shape[axis]} elements on dim {dim}; expected 3")
    a, b = (_parts(builder, builder.expand(builder.widened(x), shape), axis) for x in (self, other))
    rows = [
        builder.prim(
            "sub",
            builder.prim("mul", a[(k + 1) % 3], b[(k + 2) % 3]),
            builder.prim("mul", a[(k + 2) % 3], b[(k + 1) % 3]),
        )
        for k in range(3)
    ]
    return builder.convert(builder.prim("cat", *rows, dim=axis), self.dtype)


@decomposes("aten.dist.default")
def dist(builder: PrimsBuilder, self: Tensor, other: Tensor, p: Number = 2) -> Tensor:
    """The norm of the difference."""
    dtype = builder.promoted(self, other)
    difference = builder.apply("sub", builder.convert(self, dtype), builder.convert(other, dtype))
    return vector_norm(builder, difference, p)


def _parts(builder: PrimsBuilder, x: Tensor, axis: int) -> list[Tensor]:
    return [builder.slice_axis(x, axis, as_expr(k), as_expr(k + 1)) for k in range(3)]
