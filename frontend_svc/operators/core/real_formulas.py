"""Formulas over floating-point tensors, written as mathematics writes them."""

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
    """A tensor with the operators of arithmetic; comparisons give reals of bool."""

    builder: PrimsBuilder
    tensor: Tensor

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    def full(self, value: float) -> Real:
        """A number in this one's type and shape."""
        return Real(self.builder, self.builder.full(value, self.dtype, self.tensor.shape))

    def of(self, prim: str) -> Real:
        """An elementwise prim of this one."""
        return Real(self.builder, self.builder.prim(prim, self.tensor))

    def with_(self, prim: str, other: RealOperand) -> Real:
        """An elementwise prim of this one and another operand."""
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
        """A selection by this condition; at least one branch is a real."""
        return Real(
            self.builder, self.builder.where(self.tensor, _operand(if_true), _operand(if_false))
        )


RealOperand = Union[Real, float]
"""A real, or a number of its type."""

RealFunction = Callable[[Real], Real]
"""A function of f32 or f64 that gives the same type."""


def computing(builder: PrimsBuilder, x: Tensor, dtype: DType) -> Real:
    """A tensor in the type that functions answering in `dtype` compute in.

    Raises:
        InvalidGraphError: these functions are not computed in that type.
    """
    if dtype.compute_dtype not in _COMPUTING:
        raise InvalidGraphError(f"a function of type {dtype!r}; expected a float")
    return Real(builder, builder.convert(builder.convert(x, dtype), dtype.compute_dtype))


def of_float(builder: PrimsBuilder, x: Tensor, function: RealFunction) -> Tensor:
    """A function of one operand: integers become f32, narrow floats are computed in f32."""
    dtype = float_dtype(x.dtype)
    return builder.convert(function(computing(builder, x, dtype)).tensor, dtype)


def decomposes_real(*names: str) -> Callable[[RealFunction], RealFunction]:
    """Registers a function of one real for operators (`lgamma`) of one operand, named `self`."""

    def register(function: RealFunction) -> RealFunction:
        def of_self(builder: PrimsBuilder, self: Tensor) -> Tensor:
            return of_float(builder, self, function)

        of_self.__module__ = function.__module__
        decomposes(*(f"aten.{name}.default" for name in names))(of_self)
        return function

    return register


def decomposes_real_x(*names: str) -> Callable[[RealFunction], RealFunction]:
    """As `decomposes_real` for operators whose operand is named `x`."""

    def register(function: RealFunction) -> RealFunction:
        def of_x(builder: PrimsBuilder, x: Tensor) -> Tensor:
            return of_float(builder, x, function)

        of_x.__module__ = function.__module__
        decomposes(*(f"aten.{name}.default" for name in names))(of_x)
        return function

    return register


def _operand(value: RealOperand) -> Tensor | float:
    return value.tensor if isinstance(value, Real) else value
