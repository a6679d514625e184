"""Creation of tensors: constants, ranges, identity matrices."""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import DEFAULT_FLOAT, number_dtype
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, ceil_div

Sizes = tuple[Expr, ...]

MAX_RANGE = 2**63
"""The numbers of a tensor's elements have 64 bits."""

EMPTY = 0
"""The elements of an empty tensor are undefined; zeros make runs repeatable."""


@decomposes("aten.full.default")
def full(
    builder: PrimsBuilder, size: tuple[Expr, ...], fill_value: Number, *, dtype: DType | None = None
) -> Tensor:
    """A tensor of one number; by default of the number's type."""
    return _filled(builder, size, fill_value, dtype or number_dtype(fill_value))


@decomposes("aten.scalar_tensor.default")
def scalar_tensor(builder: PrimsBuilder, s: Number, *, dtype: DType | None = None) -> Tensor:
    """A number as a tensor without axes; by default a float."""
    return _filled(builder, (), s, dtype or DEFAULT_FLOAT)


@decomposes("aten.full_like.default")
def full_like(
    builder: PrimsBuilder, self: Tensor, fill_value: Number, *, dtype: DType | None = None
) -> Tensor:
    """A tensor of one number with another tensor's shape and type."""
    return _filled(builder, self.shape, fill_value, dtype or self.dtype)


@decomposes("aten.new_full.default")
def new_full(
    builder: PrimsBuilder,
    self: Tensor,
    size: tuple[Expr, ...],
    fill_value: Number,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """A tensor of one number with another tensor's type."""
    return _filled(builder, size, fill_value, dtype or self.dtype)


@decomposes("aten.fill.Scalar")
def fill_scalar(builder: PrimsBuilder, self: Tensor, value: Number) -> Tensor:
    """All elements replaced by a number."""
    return _filled(builder, self.shape, value, self.dtype)


@decomposes("aten.fill.Tensor")
def fill_tensor(builder: PrimsBuilder, self: Tensor, value: Tensor) -> Tensor:
    """All elements replaced by the one element of a tensor without axes."""
    if value.rank:
        raise InvalidGraphError(f"a value with {value.rank} axes; expected none")
    return builder.expand(builder.convert(value, self.dtype), self.shape)


@decomposes("aten.zeros.default", fixed={"value": 0})
@decomposes("aten.ones.default", fixed={"value": 1})
@decomposes("aten.empty.memory_format", fixed={"value": EMPTY})
def constant(
    builder: PrimsBuilder, size: tuple[Expr, ...], *, dtype: DType | None = None, value: int
) -> Tensor:
    """A tensor of one number, which the operator's name states."""
    return _filled(builder, size, value, dtype or DEFAULT_FLOAT)


@decomposes("aten.zeros_like.default", fixed={"value": 0})
@decomposes("aten.ones_like.default", fixed={"value": 1})
@decomposes("aten.empty_like.default", fixed={"value": EMPTY})
def constant_like(
    builder: PrimsBuilder, self: Tensor, *, dtype: DType | None = None, value: int
) -> Tensor:
    """A tensor of one number with another tensor's shape and type."""
    return _filled(builder, self.shape, value, dtype or self.dtype)


@decomposes("aten.new_zeros.default", fixed={"value": 0})
@decomposes("aten.new_ones.default", fixed={"value": 1})
@decomposes("aten.new_empty.default", fixed={"value": EMPTY})
def new_constant(
    builder: PrimsBuilder,
    self: Tensor,
    size: tuple[Expr, ...],
    *,
    dtype: DType | None = None,
    value: int,
) -> Tensor:
    """A tensor of one number with another tensor's type."""
    return _filled(builder, size, value, dtype or self.dtype)


@decomposes("aten.empty_strided.default")
def empty_strided(
    builder: PrimsBuilder,
    size: tuple[Expr, ...],
    stride: tuple[Expr, ...],
    *,
    dtype: DType | None = None,
) -> Tensor:
    """A tensor of zeros; strides are binding at the graph's outputs only."""
    return _filled(builder, size, 0, dtype or DEFAULT_FLOAT)


@decomposes("aten.empty_permuted.default")
def empty_permuted(
    builder: PrimsBuilder,
    size: tuple[Expr, ...],
    physical_layout: tuple[int, ...],
    *,
    dtype: DType | None = None,
) -> Tensor:
    """A tensor of zeros; strides are binding at the graph's outputs only."""
    return _filled(builder, size, 0, dtype or DEFAULT_FLOAT)


@decomposes("aten.new_empty_strided.default")
def new_empty_strided(
    builder: PrimsBuilder,
    self: Tensor,
    size: tuple[Expr, ...],
    stride: tuple[Expr, ...],
    *,
    dtype: DType | None = None,
) -> Tensor:
    """A tensor of zeros; strides are binding at the graph's outputs only."""
    return _filled(builder, size, 0, dtype or self.dtype)


@decomposes("aten.arange.default")
def arange(builder: PrimsBuilder, end: Number, *, dtype: DType | None = None) -> Tensor:
    """0, 1, ... below end."""
    return arange_start_step(builder, 0, end, dtype=dtype)


@decomposes("aten.arange.start")
def arange_start(
    builder: PrimsBuilder, start: Number, end: Number, *, dtype: DType | None = None
) -> Tensor:
    """start, start+1, ... below end."""
    return arange_start_step(builder, start, end, dtype=dtype)


@decomposes("aten.arange.start_step")
def arange_start_step(
    builder: PrimsBuilder,
    start: Number,
    end: Number,
    step: Number = 1,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """start, start+step, ... below end (above it for a negative step)."""
    has_float = any(isinstance(number, float) for number in (start, end, step))
    result = dtype or (DEFAULT_FLOAT if has_float else DType.I64)
    if has_float and not result.is_float:
        return _truncated_range(builder, start, end, step, result)
    length = _float_length(start, end, step) if has_float else _length(builder, start, end, step)
    return _ramp(builder, length, start, step, result)


@decomposes("aten.range.default", "aten.range.step")
def closed_range(
    builder: PrimsBuilder,
    start: Number,
    end: Number,
    step: Number = 1,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """start, start+step, ... up to end, end included."""
    if isinstance(start, Expr) or isinstance(end, Expr) or isinstance(step, Expr):
        raise NotDecomposedError("a range with symbolic ends")
    result = dtype or DEFAULT_FLOAT
    length = as_expr(math.floor(_steps_between(start, end, step)) + 1)
    if result.is_float:
        return _ramp(builder, length, start, step, result)
    return _ramp(builder, length, int(start), int(step), result)


@decomposes("prims.iota.default")
def iota(
    builder: PrimsBuilder,
    length: Expr,
    *,
    start: Number,
    step: Number,
    dtype: DType,
    requires_grad: bool = False,
) -> Tensor:
    """start, start+step, ..., of a given length."""
    return _ramp(builder, _checked_length(length), start, step, dtype)


@decomposes("aten.eye.default")
def eye(builder: PrimsBuilder, n: Expr, *, dtype: DType | None = None) -> Tensor:
    """The square matrix with ones on its diagonal."""
    return eye_m(builder, n, n, dtype=dtype)


@decomposes("aten.eye.m")
def eye_m(builder: PrimsBuilder, n: Expr, m: Expr, *, dtype: DType | None = None) -> Tensor:
    """The n x m matrix with ones on its diagonal."""
    rows = builder.reshape(builder.iota(_checked_length(n)), (n, ONE))
    columns = builder.iota(_checked_length(m))
    return builder.convert(builder.apply("eq", rows, columns), dtype or DEFAULT_FLOAT)


def _filled(builder: PrimsBuilder, size: Sizes, value: Number, dtype: DType) -> Tensor:
    return builder.full(value, dtype, tuple(_checked_length(extent) for extent in size))


def _truncated_range(
    builder: PrimsBuilder, start: Number, end: Number, step: Number, dtype: DType
) -> Tensor:
    """A range of integers whose ends or step are floats, which are truncated.

    For i64 only, the number of elements is computed from the truncated numbers too.
    """
    length = _float_length(start, end, step)
    first, last, stride = (_as_size(number) for number in (start, end, step))
    if dtype is DType.I64:
        length = _length(builder, first, last, stride)
    return _ramp(builder, length, first.constant, stride.constant, dtype)


def _ramp(builder: PrimsBuilder, length: Expr, start: Number, step: Number, dtype: DType) -> Tensor:
    numbers = builder.iota(length)
    wide = dtype.compute_dtype if dtype.is_float else DType.I64
    numbers = builder.convert(numbers, wide)
    if isinstance(step, Expr) or step != 1:
        numbers = builder.apply("mul", numbers, step)
    if isinstance(start, Expr) or start != 0:
        numbers = builder.apply("add", numbers, start)
    return builder.convert(numbers, dtype)


def _length(builder: PrimsBuilder, start: Number, end: Number, step: Number) -> Expr:
    first, last, stride = (_as_size(number) for number in (start, end, step))
    if not stride.is_constant:
        raise NotDecomposedError("a range with a symbolic step")
    if stride.constant == 0:
        raise InvalidGraphError("a range with step 0; expected another step")
    span, stride = (last - first, stride) if stride.constant > 0 else (first - last, -stride)
    length = builder.extents.simplified(ceil_div(span, stride))
    if length.is_constant and length.constant < 0:
        raise InvalidGraphError(
            f"a range from {first} to {last}; expected a step with the other sign"
        )
    return length


def _float_length(start: Number, end: Number, step: Number) -> Expr:
    if isinstance(start, Expr) or isinstance(end, Expr) or isinstance(step, Expr):
        raise NotDecomposedError("a range of floats with symbolic ends")
    return as_expr(math.ceil(_steps_between(start, end, step)))


def _steps_between(start: float, end: float, step: float) -> float:
    """The number of steps from start to end, not rounded.

    Raises:
        InvalidGraphError: a number is not finite, the step is 0 or has the wrong sign, or there
            would be more elements than a tensor can have.
    """
    seen = f"a range from {start} to {end} in steps of {step}"
    if step == 0 or not all(map(math.isfinite, (start, end, step))):
        raise InvalidGraphError(f"{seen}; expected finite numbers and a step other than 0")
    try:
        steps = (end - start) / step
    except OverflowError:
        steps = math.inf
    if steps < 0:
        raise InvalidGraphError(f"{seen}; expected a step with the other sign")
    # Overflow gives infinity or NaN.
    if not steps < MAX_RANGE:
        raise InvalidGraphError(f"{seen}; expected at most {MAX_RANGE} elements")
    return steps


def _as_size(number: Number) -> Expr:
    if isinstance(number, float) and not abs(number) < MAX_RANGE:
        raise InvalidGraphError(f"{number} in a range of integers; expected one of 64 bits")
    return number if isinstance(number, Expr) else as_expr(int(number))


def _checked_length(extent: Expr) -> Expr:
    if extent.is_constant and extent.constant < 0:
        raise InvalidGraphError(f"an extent of {extent}; expected 0 or more")
    return extent if not extent.is_constant else ZERO + extent
