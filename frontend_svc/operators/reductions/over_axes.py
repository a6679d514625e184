"""Sums, products, extrema and truth over axes; narrow floats accumulate in f32."""

from __future__ import annotations

import math
from collections.abc import Callable

from frontend_svc.operators.core.extents import axes_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.promotion import sum_dtype
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_EXTREMUM = {"amax": "any", "amin": "all"}
"""What an extremum of bools is."""


def reduced_axes(x: Tensor, dim: tuple[int, ...] | None) -> tuple[int, ...]:
    """The axes that `dim` names; all of them if it is none or empty."""
    if not dim:
        return tuple(range(x.rank))
    axes = axes_of(dim, x.rank)
    return axes if x.rank else ()


def reduced(op: Lowering, prim: str, x: Tensor, axes: tuple[int, ...], *, keepdim: bool) -> Tensor:
    """A reduction that keeps the type and accumulates in the computing type."""
    return op.convert(op.reduce(prim, op.widened(x), axes, keepdim=keepdim), x.dtype)


@decomposes("aten.sum.default")
def sum_all(op: Lowering, self: Tensor, *, dtype: DType | None = None) -> Tensor:
    """The sum of all elements; integers and bools add up in i64."""
    return sum_dims(op, self, None, dtype=dtype)


@decomposes("aten.sum.dim_IntList")
def sum_dims(
    op: Lowering,
    self: Tensor,
    dim: tuple[int, ...] | None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The sum over axes; integers and bools add up in i64."""
    result = dtype or sum_dtype(self.dtype)
    return reduced(op, "sum", *_converted(op, self, dim, result), keepdim=keepdim)


@decomposes("aten.prod.default")
def prod_all(op: Lowering, self: Tensor, *, dtype: DType | None = None) -> Tensor:
    """The product of all elements; integers and bools multiply in i64."""
    result = dtype or sum_dtype(self.dtype)
    return reduced(op, "prod", *_converted(op, self, None, result), keepdim=False)


@decomposes("aten.prod.dim_int")
def prod_dim(
    op: Lowering, self: Tensor, dim: int, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The product over an axis; integers and bools multiply in i64."""
    result = dtype or sum_dtype(self.dtype)
    return reduced(op, "prod", *_converted(op, self, (dim,), result), keepdim=keepdim)


@decomposes("aten.amax.default")
def amax(op: Lowering, self: Tensor, dim: tuple[int, ...] = (), keepdim: bool = False) -> Tensor:
    """The largest element over axes; NaN wins."""
    return _extremum(op, "amax", self, reduced_axes(self, dim), keepdim=keepdim)


@decomposes("aten.amin.default")
def amin(op: Lowering, self: Tensor, dim: tuple[int, ...] = (), keepdim: bool = False) -> Tensor:
    """The smallest element over axes; NaN wins."""
    return _extremum(op, "amin", self, reduced_axes(self, dim), keepdim=keepdim)


@decomposes("aten.max.default")
def max_all(op: Lowering, self: Tensor) -> Tensor:
    """The largest element; NaN wins."""
    return amax(op, self)


@decomposes("aten.min.default")
def min_all(op: Lowering, self: Tensor) -> Tensor:
    """The smallest element; NaN wins."""
    return amin(op, self)


@decomposes("aten.max.dim")
def max_dim(op: Lowering, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The largest element over an axis and the first position that holds it."""
    value = amax(op, self, (dim,), keepdim)
    return value, _position(op, "argmax", self, dim, keepdim=keepdim)


@decomposes("aten.min.dim")
def min_dim(op: Lowering, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest element over an axis and the first position that holds it."""
    value = amin(op, self, (dim,), keepdim)
    return value, _position(op, "argmin", self, dim, keepdim=keepdim)


@decomposes("aten.aminmax.default")
def aminmax(
    op: Lowering, self: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element."""
    dims = () if dim is None else (dim,)
    return amin(op, self, dims, keepdim), amax(op, self, dims, keepdim)


@decomposes("aten._aminmax.default")
def old_aminmax(op: Lowering, self: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element, by an older name."""
    return aminmax(op, self)


@decomposes("aten._aminmax.dim")
def old_aminmax_dim(
    op: Lowering, self: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element over an axis, by an older name."""
    return aminmax(op, self, dim=dim, keepdim=keepdim)


@decomposes("aten._is_any_true.default")
def is_any_true(op: Lowering, self: Tensor) -> Tensor:
    """Whether one bool at least holds."""
    return _truth(op, "any", self, tuple(range(self.rank)), keepdim=False)


@decomposes("aten._is_all_true.default")
def is_all_true(op: Lowering, self: Tensor) -> Tensor:
    """Whether all bools hold."""
    return _truth(op, "all", self, tuple(range(self.rank)), keepdim=False)


@decomposes("aten.argmax.default")
def argmax(op: Lowering, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The first position of the largest element; without a dim, in the flattened tensor."""
    return _position(op, "argmax", self, dim, keepdim=keepdim)


@decomposes("aten.argmin.default")
def argmin(op: Lowering, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The first position of the smallest element; without a dim, in the flattened tensor."""
    return _position(op, "argmin", self, dim, keepdim=keepdim)


@decomposes("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(op: Lowering, self: Tensor, dim: tuple[int, ...] | None = None) -> Tensor:
    """How many elements are not zero."""
    return sum_dims(op, op.convert(self, DType.BOOL), dim)


@decomposes("aten.linalg_vector_norm.default")
def vector_norm(
    op: Lowering,
    self: Tensor,
    ord: Number = 2,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """(sum |x|^p)^(1/p) over axes, and its limits for p of 0 and infinity."""
    if not isinstance(ord, bool | int | float):
        raise NotDecomposedError("the order of a norm is a symbolic size")
    if not self.dtype.is_float:
        raise InvalidGraphError(f"a norm of type {self.dtype!r}; expected a float")
    result = dtype or self.dtype
    x = op.convert(self, result.compute_dtype)
    axes = reduced_axes(self, dim)
    return op.convert(_norm(op, x, float(ord), axes, keepdim=keepdim), result)


@decomposes(
    "aten.norm.ScalarOpt_dim",
    "aten.norm.Scalar",
    "aten.norm.ScalarOpt_dtype",
    "aten.norm.ScalarOpt_dim_dtype",
)
def norm(
    op: Lowering,
    self: Tensor,
    p: Number | None = 2,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The same by its older name."""
    return vector_norm(op, self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@decomposes("aten.linalg__powsum.default")
def power_sum(
    op: Lowering,
    self: Tensor,
    ord: Number = 2,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """sum |x|^p over axes: a norm before its root."""
    if not isinstance(ord, bool | int | float) or not math.isfinite(ord):
        raise NotDecomposedError(f"the sum of powers {ord}")
    result = dtype or self.dtype
    magnitude = op.prim("abs", op.convert(self, result.compute_dtype))
    if ord == 0:
        powers = op.convert(op.apply("ne", magnitude, 0.0), magnitude.dtype)
    else:
        powers = magnitude if ord == 1 else op.apply("pow", magnitude, float(ord))
    found = op.reduce("sum", powers, reduced_axes(self, dim), keepdim=keepdim)
    return op.convert(found, result)


def _norm(op: Lowering, x: Tensor, order: float, axes: tuple[int, ...], *, keepdim: bool) -> Tensor:
    magnitude = op.prim("abs", x)
    if order == float("inf"):
        return op.reduce("amax", magnitude, axes, keepdim=keepdim)
    if order == float("-inf"):
        return op.reduce("amin", magnitude, axes, keepdim=keepdim)
    if order == 0.0:
        flags = op.convert(op.apply("ne", x, 0.0), x.dtype)
        return op.reduce("sum", flags, axes, keepdim=keepdim)
    if order == 1.0:
        return op.reduce("sum", magnitude, axes, keepdim=keepdim)
    if order == 2.0:
        total = op.reduce("sum", op.prim("mul", x, x), axes, keepdim=keepdim)
        return op.prim("sqrt", total)
    powers = op.apply("pow", magnitude, order)
    return op.apply("pow", op.reduce("sum", powers, axes, keepdim=keepdim), 1.0 / order)


def _register_truth(prim: str) -> None:
    def all_axes(op: Lowering, self: Tensor) -> Tensor:
        return _truth(op, prim, self, tuple(range(self.rank)), keepdim=False)

    def one_axis(op: Lowering, self: Tensor, dim: int, keepdim: bool = False) -> Tensor:
        return _truth(op, prim, self, reduced_axes(self, (dim,)), keepdim=keepdim)

    def some_axes(
        op: Lowering, self: Tensor, dim: tuple[int, ...] | None = None, keepdim: bool = False
    ) -> Tensor:
        # An empty list reduces nothing here, unlike for sums.
        axes = () if dim == () else reduced_axes(self, dim)
        return _truth(op, prim, self, axes, keepdim=keepdim)

    forms: dict[str, Callable[..., Tensor]] = {
        "default": all_axes,
        "dim": one_axis,
        "dims": some_axes,
    }
    for overload, function in forms.items():
        decomposes(f"aten.{prim}.{overload}")(function)


for _prim in ("any", "all"):
    _register_truth(_prim)


def _truth(op: Lowering, prim: str, x: Tensor, axes: tuple[int, ...], *, keepdim: bool) -> Tensor:
    result = op.reduce(prim, op.convert(x, DType.BOOL), axes, keepdim=keepdim)
    # PyTorch answers in u8 for u8, else in bool.
    return op.convert(result, DType.U8) if x.dtype is DType.U8 else result


def _converted(
    op: Lowering, x: Tensor, dim: tuple[int, ...] | None, dtype: DType
) -> tuple[Tensor, tuple[int, ...]]:
    return op.convert(x, dtype), reduced_axes(x, dim)


def _extremum(
    op: Lowering, prim: str, x: Tensor, axes: tuple[int, ...], *, keepdim: bool
) -> Tensor:
    if any(x.shape[axis] == 0 for axis in axes):
        raise InvalidGraphError("an extremum over no elements; expected an axis that is not empty")
    if x.dtype is DType.BOOL:
        return op.reduce(_EXTREMUM[prim], x, axes, keepdim=keepdim)
    return reduced(op, prim, x, axes, keepdim=keepdim)


def _position(op: Lowering, prim: str, x: Tensor, dim: int | None, *, keepdim: bool) -> Tensor:
    axes = tuple(range(x.rank)) if dim is None else reduced_axes(x, (dim,))
    numbers = op.convert(x, DType.U8) if x.dtype is DType.BOOL else op.widened(x)
    return op.reduce(prim, numbers, axes, keepdim=keepdim)
