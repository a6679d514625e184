"""Formulas over floating-point tensors, in the notation of mathematics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_COMPUTING = frozenset({DType.F64, DType.F32})


@dataclass(frozen=True, slots=True, eq=False)
class Real:
    """A tensor with arithmetic operators; comparisons return reals of bool."""

    builder: PrimsBuilder
    tensor: Tensor

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    def full(self, value: float) -> Real:
        """A number in the type and shape of this real."""
        return Real(self.builder, self.builder.full(value, self.dtype, self.tensor.shape))

    def of(self, prim: str) -> Real:
        """An elementwise prim of this real."""
        return Real(self.builder, self.builder.prim(prim, self.tensor))

    def with_(self, prim: str, other: RealOperand) -> Real:
        """An elementwise prim of this real and another operand."""
        return Real(self.builder, self.builder.apply(prim, self.tensor, _operand(other)))

    def __add__(self, other: RealOperand) -> Real:
        return self.with_("add", other)

    def __radd__(self, other: float) -> Real:
        return self.with_("add", other)

    def __sub__(self, other: RealOperand) -> Real:
        return self.with_("sub", other)

    def __rsub__(self, other: float) -> Real:
        return Real(self.builder, self.builder.apply("sub", other, self.tensor))

    def __mul__(self, other: RealOperand) -> Real:
        return self.with_("mul", other)

    def __rmul__(self, other: float) -> Real:
        return self.with_("mul", other)

    def __truediv__(self, other: RealOperand) -> Real:
        return self.with_("div", other)

    def __rtruediv__(self, other: float) -> Real:
        return Real(self.builder, self.builder.apply("div", other, self.tensor))

    def __neg__(self) -> Real:
        return self.of("neg")

    def __lt__(self, other: RealOperand) -> Real:
        return self.with_("lt", other)

    def __le__(self, other: RealOperand) -> Real:
        return self.with_("le", other)

    def __gt__(self, other: RealOperand) -> Real:
        return self.with_("gt", other)

    def __ge__(self, other: RealOperand) -> Real:
        return self.with_("ge", other)

    def __and__(self, other: Real) -> Real:
        return self.with_("logical_and", other)

    def __or__(self, other: Real) -> Real:
        return self.with_("logical_or", other)

    def is_(self, other: RealOperand) -> Real:
        """True where equal."""
        return self.with_("eq", other)

    def where(self, if_true: RealOperand, if_false: RealOperand) -> Real:
        """A selection by this condition; at least one branch must be a real."""
        return Real(
            self.builder, self.builder.where(self.tensor, _operand(if_true), _operand(if_false))
        )


RealOperand = Union[Real, float]
"""A real, or a number of its type."""

RealFunction = Callable[[Real], Real]
"""A function of f32 or f64 that returns the same type."""


def computing(builder: PrimsBuilder, x: Tensor, dtype: DType) -> Real:
    """A tensor in the type in which functions with results of `dtype` are computed.

    Raises:
        InvalidGraphError: the computing type of `dtype` is neither f32 nor f64.
    """
    if dtype.compute_dtype not in _COMPUTING:
        raise InvalidGraphError(f"a function of type {dtype!r}; expected a float")
    return Real(builder, builder.convert(builder.convert(x, dtype), dtype.compute_dtype))


def of_float(builder: PrimsBuilder, x: Tensor, function: RealFunction) -> Tensor:
    """A function of one tensor: integers become f32, narrow floats are computed in f32."""
    dtype = float_dtype(x.dtype)
    return builder.convert(function(computing(builder, x, dtype)).tensor, dtype)


def decomposes_real(*names: str) -> Callable[[RealFunction], RealFunction]:
    """Registers a function of one real for operators (`lgamma`) whose operand is named `self`."""

    def register(function: RealFunction) -> RealFunction:
        def of_self(builder: PrimsBuilder, self: Tensor) -> Tensor:
            return of_float(builder, self, function)

        of_self.__module__ = function.__module__
        decomposes(*(f"aten.{name}.default" for name in names))(of_self)
        return function

    return register


def decomposes_real_x(*names: str) -> Callable[[RealFunction], RealFunction]:
    """As `decomposes_real`, for operators whose operand is named `x`."""

    def register(function: RealFunction) -> RealFunction:
        def of_x(builder: PrimsBuilder, x: Tensor) -> Tensor:
            return of_float(builder, x, function)

        of_x.__module__ = function.__module__
        decomposes(*(f"aten.{name}.default" for name in names))(of_x)
        return function

    return register


def _operand(value: RealOperand) -> Tensor | float:
    return value.tensor if isinstance(value, Real) else value
