"""Sums, products, extrema and truth over axes; narrow floats accumulate in f32."""

from __future__ import annotations

import math

from frontend_svc.operators.core.extents import axes_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import sum_dtype
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_EXTREMUM = {"amax": "any", "amin": "all"}
"""The prim that is an extremum of bools."""


def reduced_axes(x: Tensor, dim: tuple[int, ...] | None) -> tuple[int, ...]:
    """The axes of `dim`; all axes if it is None or empty."""
    if not dim:
        return tuple(range(x.rank))
    axes = axes_of(dim, x.rank)
    return axes if x.rank else ()


def reduced(
    builder: PrimsBuilder, prim: str, x: Tensor, axes: tuple[int, ...], *, keepdim: bool
) -> Tensor:
    """A reduction that keeps the type and accumulates in the computing type."""
    return builder.convert(builder.reduce(prim, builder.widened(x), axes, keepdim=keepdim), x.dtype)


@decomposes("aten.sum.default")
def sum_all(builder: PrimsBuilder, self: Tensor, *, dtype: DType | None = None) -> Tensor:
    """The sum of all elements; integers and bools add up in i64."""
    return sum_dims(builder, self, None, dtype=dtype)


@decomposes("aten.sum.dim_IntList")
def sum_dims(
    builder: PrimsBuilder,
    self: Tensor,
    dim: tuple[int, ...] | None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The sum over axes; integers and bools add up in i64."""
    result = dtype or sum_dtype(self.dtype)
    return reduced(builder, "sum", *_converted(builder, self, dim, result), keepdim=keepdim)


@decomposes("aten.prod.default")
def prod_all(builder: PrimsBuilder, self: Tensor, *, dtype: DType | None = None) -> Tensor:
    """The product of all elements; integers and bools multiply in i64."""
    result = dtype or sum_dtype(self.dtype)
    return reduced(builder, "prod", *_converted(builder, self, None, result), keepdim=False)


@decomposes("aten.prod.dim_int")
def prod_dim(
    builder: PrimsBuilder,
    self: Tensor,
    dim: int,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The product over an axis; integers and bools multiply in i64."""
    result = dtype or sum_dtype(self.dtype)
    return reduced(builder, "prod", *_converted(builder, self, (dim,), result), keepdim=keepdim)


@decomposes("aten.amax.default")
def amax(
    builder: PrimsBuilder, self: Tensor, dim: tuple[int, ...] = (), keepdim: bool = False
) -> Tensor:
    """The largest element over axes; NaN if an element is NaN."""
    return _extremum(builder, "amax", self, reduced_axes(self, dim), keepdim=keepdim)


@decomposes("aten.amin.default")
def amin(
    builder: PrimsBuilder, self: Tensor, dim: tuple[int, ...] = (), keepdim: bool = False
) -> Tensor:
    """The smallest element over axes; NaN if an element is NaN."""
    return _extremum(builder, "amin", self, reduced_axes(self, dim), keepdim=keepdim)


@decomposes("aten.max.default")
def max_all(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """The largest element; NaN if an element is NaN."""
    return amax(builder, self)


@decomposes("aten.min.default")
def min_all(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """The smallest element; NaN if an element is NaN."""
    return amin(builder, self)


@decomposes("aten.max.dim")
def max_dim(
    builder: PrimsBuilder, self: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The largest element over an axis, and its first position."""
    value = amax(builder, self, (dim,), keepdim)
    return value, _position(builder, "argmax", self, dim, keepdim=keepdim)


@decomposes("aten.min.dim")
def min_dim(
    builder: PrimsBuilder, self: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The smallest element over an axis, and its first position."""
    value = amin(builder, self, (dim,), keepdim)
    return value, _position(builder, "argmin", self, dim, keepdim=keepdim)


@decomposes("aten.aminmax.default")
def aminmax(
    builder: PrimsBuilder, self: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element."""
    dims = () if dim is None else (dim,)
    return amin(builder, self, dims, keepdim), amax(builder, self, dims, keepdim)


@decomposes("aten._aminmax.default")
def old_aminmax(builder: PrimsBuilder, self: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element, by an older name."""
    return aminmax(builder, self)


@decomposes("aten._aminmax.dim")
def old_aminmax_dim(
    builder: PrimsBuilder, self: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element over an axis, by an older name."""
    return aminmax(builder, self, dim=dim, keepdim=keepdim)


@decomposes("aten._is_any_true.default")
def is_any_true(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """Whether at least one bool is true."""
    return _truth(builder, "any", self, tuple(range(self.rank)), keepdim=False)


@decomposes("aten._is_all_true.default")
def is_all_true(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """Whether all bools are true."""
    return _truth(builder, "all", self, tuple(range(self.rank)), keepdim=False)


@decomposes("aten.argmax.default")
def argmax(
    builder: PrimsBuilder, self: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor:
    """The first position of the largest element; without a dim, in the flattened tensor."""
    return _position(builder, "argmax", self, dim, keepdim=keepdim)


@decomposes("aten.argmin.default")
def argmin(
    builder: PrimsBuilder, self: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor:
    """The first position of the smallest element; without a dim, in the flattened tensor."""
    return _position(builder, "argmin", self, dim, keepdim=keepdim)


@decomposes("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(
    builder: PrimsBuilder, self: Tensor, dim: tuple[int, ...] | None = None
) -> Tensor:
    """The number of elements that are not 0."""
    return sum_dims(builder, builder.convert(self, DType.BOOL), dim)


@decomposes("aten.linalg_vector_norm.default")
def vector_norm(
    builder: PrimsBuilder,
    self: Tensor,
    ord: Number = 2,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """(sum |x|^p)^(1/p) over axes, and its limits for p = 0 and p = infinity."""
    if not isinstance(ord, bool | int | float):
        raise NotDecomposedError("the order of a norm is a symbolic size")
    if not self.dtype.is_float:
        raise InvalidGraphError(f"a norm of type {self.dtype!r}; expected a float")
    result = dtype or self.dtype
    x = builder.convert(self, result.compute_dtype)
    axes = reduced_axes(self, dim)
    return builder.convert(_norm(builder, x, float(ord), axes, keepdim=keepdim), result)


@decomposes(
    "aten.norm.ScalarOpt_dim",
    "aten.norm.Scalar",
    "aten.norm.ScalarOpt_dtype",
    "aten.norm.ScalarOpt_dim_dtype",
)
def norm(
    builder: PrimsBuilder,
    self: Tensor,
    p: Number | None = 2,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The vector norm by its older name."""
    return vector_norm(builder, self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@decomposes("aten.linalg__powsum.default")
def power_sum(
    builder: PrimsBuilder,
    self: Tensor,
    ord: Number = 2,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """sum |x|^p over axes."""
    if not isinstance(ord, bool | int | float) or not math.isfinite(ord):
        raise NotDecomposedError(f"the sum of powers {ord}")
    result = dtype or self.dtype
    magnitude = builder.prim("abs", builder.convert(self, result.compute_dtype))
    if ord == 0:
        powers = builder.convert(builder.apply("ne", magnitude, 0.0), magnitude.dtype)
    else:
        powers = magnitude if ord == 1 else builder.apply("pow", magnitude, float(ord))
    found = builder.reduce("sum", powers, reduced_axes(self, dim), keepdim=keepdim)
    return builder.convert(found, result)


def _norm(
    builder: PrimsBuilder, x: Tensor, order: float, axes: tuple[int, ...], *, keepdim: bool
) -> Tensor:
    magnitude = builder.prim("abs", x)
    if order == float("inf"):
        return builder.reduce("amax", magnitude, axes, keepdim=keepdim)
    if order == float("-inf"):
        return builder.reduce("amin", magnitude, axes, keepdim=keepdim)
    if order == 0.0:
        flags = builder.convert(builder.apply("ne", x, 0.0), x.dtype)
        return builder.reduce("sum", flags, axes, keepdim=keepdim)
    if order == 1.0:
        return builder.reduce("sum", magnitude, axes, keepdim=keepdim)
    if order == 2.0:
        total = builder.reduce("sum", builder.prim("mul", x, x), axes, keepdim=keepdim)
        return builder.prim("sqrt", total)
    powers = builder.apply("pow", magnitude, order)
    return builder.apply("pow", builder.reduce("sum", powers, axes, keepdim=keepdim), 1.0 / order)


@decomposes("aten.any.default", fixed={"prim": "any"})
@decomposes("aten.all.default", fixed={"prim": "all"})
def truth_all(builder: PrimsBuilder, self: Tensor, *, prim: str) -> Tensor:
    """Whether any element is not 0, or all of them are."""
    return _truth(builder, prim, self, tuple(range(self.rank)), keepdim=False)


@decomposes("aten.any.dim", fixed={"prim": "any"})
@decomposes("aten.all.dim", fixed={"prim": "all"})
def truth_dim(
    builder: PrimsBuilder, self: Tensor, dim: int, keepdim: bool = False, *, prim: str
) -> Tensor:
    """Whether any element along an axis is not 0, or all of them are."""
    return _truth(builder, prim, self, reduced_axes(self, (dim,)), keepdim=keepdim)


@decomposes("aten.any.dims", fixed={"prim": "any"})
@decomposes("aten.all.dims", fixed={"prim": "all"})
def truth_dims(
    builder: PrimsBuilder,
    self: Tensor,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    prim: str,
) -> Tensor:
    """Whether any element over axes is not 0, or all of them are."""
    # An empty list reduces nothing here, unlike for sums.
    axes = () if dim == () else reduced_axes(self, dim)
    return _truth(builder, prim, self, axes, keepdim=keepdim)


def _truth(
    builder: PrimsBuilder, prim: str, x: Tensor, axes: tuple[int, ...], *, keepdim: bool
) -> Tensor:
    result = builder.reduce(prim, builder.convert(x, DType.BOOL), axes, keepdim=keepdim)
    # In PyTorch the result is u8 for u8, else bool.
    return builder.convert(result, DType.U8) if x.dtype is DType.U8 else result


def _converted(
    builder: PrimsBuilder, x: Tensor, dim: tuple[int, ...] | None, dtype: DType
) -> tuple[Tensor, tuple[int, ...]]:
    return builder.convert(x, dtype), reduced_axes(x, dim)


def _extremum(
    builder: PrimsBuilder, prim: str, x: Tensor, axes: tuple[int, ...], *, keepdim: bool
) -> Tensor:
    if any(x.shape[axis] == 0 for axis in axes):
        raise InvalidGraphError("an extremum over no elements; expected at least one element")
    if x.dtype is DType.BOOL:
        return builder.reduce(_EXTREMUM[prim], x, axes, keepdim=keepdim)
    return reduced(builder, prim, x, axes, keepdim=keepdim)


def _position(
    builder: PrimsBuilder, prim: str, x: Tensor, dim: int | None, *, keepdim: bool
) -> Tensor:
    axes = tuple(range(x.rank)) if dim is None else reduced_axes(x, (dim,))
    numbers = builder.convert(x, DType.U8) if x.dtype is DType.BOOL else builder.widened(x)
    return builder.reduce(prim, numbers, axes, keepdim=keepdim)
