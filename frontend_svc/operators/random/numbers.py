"""Tensors of random numbers: uniform, normal, integers.

The framework runs forms that PyTorch refuses (a negative deviation, an empty range), so that it
raises its own error.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.random.bits import Draw, Shape
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr

_Maker = Callable[[PrimsBuilder, Shape, DType], Tensor]
"""(builder, shape, element type) -> random numbers."""

_INTEGER_BITS = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
"""A float represents every integer up to 2**bits."""


def standard_uniform(builder: PrimsBuilder, shape: Shape, dtype: DType) -> Tensor:
    """Numbers in [0, 1)."""
    check_float(dtype)
    return builder.convert(Draw(builder, shape).uniform(dtype), dtype)


def standard_normal(builder: PrimsBuilder, shape: Shape, dtype: DType) -> Tensor:
    """Normal numbers with mean 0 and standard deviation 1."""
    check_float(dtype)
    return builder.convert(Draw(builder, shape).normal(dtype), dtype)


@decomposes("aten.rand.default", "aten.rand.generator", fixed={"make": standard_uniform})
@decomposes("aten.randn.default", "aten.randn.generator", fixed={"make": standard_normal})
def random_of_size(
    builder: PrimsBuilder,
    size: tuple[Expr, ...],
    *,
    generator: None = None,
    dtype: DType | None = None,
    make: _Maker,
) -> Tensor:
    """Random numbers of a given shape."""
    return make(builder, size, dtype or default_float(builder))


@decomposes("aten.rand_like.default", "aten.rand_like.generator", fixed={"make": standard_uniform})
@decomposes("aten.randn_like.default", "aten.randn_like.generator", fixed={"make": standard_normal})
def random_like(
    builder: PrimsBuilder,
    self: Tensor,
    *,
    generator: None = None,
    dtype: DType | None = None,
    make: _Maker,
) -> Tensor:
    """Random numbers with another tensor's shape and type."""
    return make(builder, self.shape, dtype or self.dtype)


@decomposes("aten.uniform.default")
def uniform(
    builder: PrimsBuilder,
    self: Tensor,
    from_: float = 0.0,
    to: float = 1.0,
    *,
    generator: None = None,
) -> Tensor:
    """Numbers in [from_, to)."""
    check_float(self.dtype)
    _check(from_ <= to and math.isfinite(to - from_), f"bounds {from_} and {to}")
    drawn = Draw(builder, self.shape).uniform(self.dtype)
    if (from_, to) == (0.0, 1.0):
        return builder.convert(drawn, self.dtype)
    moved = builder.apply("add", builder.apply("mul", drawn, to - from_), from_)
    rounded = builder.convert(moved, self.dtype)
    # Rounding may give the upper bound, which is excluded unless both bounds are equal.
    return builder.where(builder.apply("ge", rounded, to), from_, rounded)


@decomposes("aten.normal_functional.default")
def normal_functional(
    builder: PrimsBuilder,
    self: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    generator: None = None,
) -> Tensor:
    """Normal numbers with one mean and one standard deviation."""
    return scaled_normal(builder, self.shape, self.dtype, mean, std)


@decomposes("aten.normal.float_float")
def normal_of_size(
    builder: PrimsBuilder,
    mean: float,
    std: float,
    size: tuple[Expr, ...],
    *,
    generator: None = None,
    dtype: DType | None = None,
) -> Tensor:
    """Normal numbers with one mean and one standard deviation."""
    return scaled_normal(builder, size, dtype or default_float(builder), mean, std)


@decomposes("aten.normal.Tensor_float")
def normal_of_means(
    builder: PrimsBuilder, mean: Tensor, std: float = 1.0, *, generator: None = None
) -> Tensor:
    """Normal numbers with each element as mean."""
    return scaled_normal(builder, mean.shape, mean.dtype, mean, std)


@decomposes("aten.normal.float_Tensor")
def normal_of_deviations(
    builder: PrimsBuilder, mean: float, std: Tensor, *, generator: None = None
) -> Tensor:
    """Normal numbers with each element as standard deviation; none may be negative."""
    return scaled_normal(builder, std.shape, std.dtype, mean, std)


@decomposes("aten.normal.Tensor_Tensor")
def normal_of_both(
    builder: PrimsBuilder, mean: Tensor, std: Tensor, *, generator: None = None
) -> Tensor:
    """Normal numbers with broadcast means and standard deviations, in the means' type."""
    shape = builder.extents.broadcast([mean.shape, std.shape])
    return scaled_normal(builder, shape, builder.promoted(mean, std), mean, std)


@decomposes("aten.log_normal.default")
def log_normal(
    builder: PrimsBuilder,
    self: Tensor,
    mean: float = 1.0,
    std: float = 2.0,
    *,
    generator: None = None,
) -> Tensor:
    """Exponentials of normal numbers with this mean and standard deviation."""
    check_float(self.dtype)
    _check(std > 0.0, f"a deviation of {std}")
    drawn = Draw(builder, self.shape).normal(self.dtype)
    moved = builder.apply("add", builder.apply("mul", drawn, std), mean)
    return builder.convert(builder.prim("exp", moved), self.dtype)


def scaled_normal(
    builder: PrimsBuilder, shape: Shape, dtype: DType, mean: Tensor | float, std: Tensor | float
) -> Tensor:
    """Normal numbers of a shape; means and standard deviations are broadcast to it."""
    check_float(dtype)
    if not isinstance(std, Tensor):
        _check(std >= 0.0, f"a deviation of {std}")
    wide = dtype.compute_dtype
    scaled = builder.apply("mul", Draw(builder, shape).normal(dtype), _of_type(builder, std, wide))
    return builder.convert(builder.apply("add", scaled, _of_type(builder, mean, wide)), dtype)


@decomposes("aten.randint.default", "aten.randint.generator")
def randint(
    builder: PrimsBuilder,
    high: int | Expr,
    size: tuple[Expr, ...],
    *,
    generator: None = None,
    dtype: DType | None = DType.I64,
) -> Tensor:
    """Integers in [0, high)."""
    return integers(builder, size, dtype or DType.I64, 0, high)


@decomposes("aten.randint.low", "aten.randint.low_generator")
def randint_from(
    builder: PrimsBuilder,
    low: int | Expr,
    high: int | Expr,
    size: tuple[Expr, ...],
    *,
    generator: None = None,
    dtype: DType | None = DType.I64,
) -> Tensor:
    """Integers in [low, high)."""
    return integers(builder, size, dtype or DType.I64, low, high)


@decomposes("aten.randint_like.default", "aten.randint_like.generator")
def randint_like(
    builder: PrimsBuilder,
    self: Tensor,
    high: int | Expr,
    *,
    generator: None = None,
    dtype: DType | None = None,
) -> Tensor:
    """Integers in [0, high), with another tensor's shape and type."""
    return integers(builder, self.shape, dtype or self.dtype, 0, high)


@decomposes("aten.randint_like.low_dtype", "aten.randint_like.low_generator_dtype")
def randint_like_from(
    builder: PrimsBuilder,
    self: Tensor,
    low: int | Expr,
    high: int | Expr,
    *,
    generator: None = None,
    dtype: DType | None = None,
) -> Tensor:
    """Integers in [low, high), with another tensor's shape and type."""
    return integers(builder, self.shape, dtype or self.dtype, low, high)


@decomposes("aten.random.to")
def random_to(builder: PrimsBuilder, self: Tensor, to: int, *, generator: None = None) -> Tensor:
    """Integers in [0, to)."""
    return integers(builder, self.shape, self.dtype, 0, to)


@decomposes("aten.random.default")
def random(builder: PrimsBuilder, self: Tensor, *, generator: None = None) -> Tensor:
    """Integers from 0 to the largest number up to which the type represents all integers."""
    return integers(builder, self.shape, self.dtype, 0, min(end_of(self.dtype), (1 << 63) - 1))


def integers(
    builder: PrimsBuilder, shape: Shape, dtype: DType, low: int | Expr, high: int | Expr
) -> Tensor:
    """Integers in [low, high), in any type that represents them."""
    if isinstance(low, Expr) or isinstance(high, Expr):
        raise NotDecomposedError("a bound is a symbolic size")
    span = high - low
    _check(0 < span < 1 << 63, f"integers from {low} to {high}")
    _check(dtype.is_float or (low >= _start_of(dtype) and high <= end_of(dtype)), "a bound")
    drawn = Draw(builder, shape).below(span)
    return builder.convert(builder.apply("add", drawn, low) if low else drawn, dtype)


def check_float(dtype: DType) -> None:
    """Checks that a type is a float.

    Raises:
        NotDecomposedError: another type; the framework refuses it.
    """
    _check(dtype in _INTEGER_BITS, f"random fractions of {dtype!r}")


def default_float(builder: PrimsBuilder) -> DType:
    """The type of a new tensor if the graph names none: the framework's default at capture.

    Raises:
        InvalidGraphError: the stated result is no float.
    """
    stated = builder.stated[0].dtype
    if not stated.is_float:
        raise InvalidGraphError(f"random fractions stated as {stated!r}; expected a float")
    return stated


def _of_type(builder: PrimsBuilder, value: Tensor | float, dtype: DType) -> Tensor | float:
    return builder.convert(value, dtype) if isinstance(value, Tensor) else value


def end_of(dtype: DType) -> int:
    """One more than the largest integer up to which the type represents all integers."""
    if dtype.is_float:
        return int((1 << _INTEGER_BITS.get(dtype, 0)) + 1)
    if dtype is DType.BOOL:
        return 2
    bits = 8 * dtype.itemsize_bytes
    return int(1 << (bits if dtype is DType.U8 else bits - 1))


def _start_of(dtype: DType) -> int:
    if dtype in (DType.BOOL, DType.U8):
        return 0
    return int(-(1 << (8 * dtype.itemsize_bytes - 1)))


def _check(is_fine: bool, seen: str) -> None:
    if not is_fine:
        raise NotDecomposedError(f"{seen}: the framework refuses or handles it")
