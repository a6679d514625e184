"""Functions of one operand, element by element."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType

_FLOAT_FUNCTION_NAMES = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2"
    " reciprocal rsqrt sigmoid sin sinh sqrt tan tanh"
)
"""Operators with the name of their prim; integers become floats first."""

_ROUNDINGS = {
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "fix": "trunc",
    "round": "round_even",
}
"""Operator -> prim; integers stay as they are."""

_MOST_DECIMALS = 30
"""Larger powers of ten are not finite in f32."""

_SIGNS = {"neg": "neg", "_neg_view": "neg", "abs": "abs", "sign": "sign", "sgn": "sign"}
"""Operator -> prim; the type is kept."""


def float_function(builder: PrimsBuilder, self: Tensor, *, prim: str) -> Tensor:
    """A prim on floats: integers become f32, narrow floats are computed in f32."""
    dtype = float_dtype(self.dtype)
    return builder.convert(builder.prim(prim, builder.convert(self, dtype.compute_dtype)), dtype)


def rounding(builder: PrimsBuilder, self: Tensor, *, prim: str) -> Tensor:
    """A float rounded to a whole number; integers stay as they are."""
    return _in_own_dtype(builder, prim, self) if self.dtype.is_float else self


def sign_function(builder: PrimsBuilder, self: Tensor, *, prim: str) -> Tensor:
    """A function of the sign, in the operand's type; bools stay as they are."""
    return self if self.dtype is DType.BOOL else _in_own_dtype(builder, prim, self)


def _in_own_dtype(builder: PrimsBuilder, prim: str, x: Tensor) -> Tensor:
    """A prim that keeps the type; narrow floats are computed in f32."""
    return builder.convert(builder.prim(prim, builder.widened(x)), x.dtype)


for _name in _FLOAT_FUNCTION_NAMES.split():
    decomposes(f"aten.{_name}.default", fixed={"prim": _name})(float_function)
for _name, _prim in _ROUNDINGS.items():
    decomposes(f"aten.{_name}.default", fixed={"prim": _prim})(rounding)
for _name, _prim in _SIGNS.items():
    decomposes(f"aten.{_name}.default", fixed={"prim": _prim})(sign_function)


@decomposes("aten.round.decimals")
def round_decimals(builder: PrimsBuilder, self: Tensor, *, decimals: int) -> Tensor:
    """Half to even, after scaling by a power of ten as PyTorch does."""
    if not self.dtype.is_float:
        return self
    if abs(decimals) > _MOST_DECIMALS:
        raise NotDecomposedError(f"rounding to {decimals} decimals")
    scale = 10.0 ** abs(decimals)
    before, after = ("mul", "div") if decimals >= 0 else ("div", "mul")
    rounded = builder.prim("round_even", builder.apply(before, builder.widened(self), scale))
    return builder.convert(builder.apply(after, rounded, scale), self.dtype)


@decomposes("aten.frac.default")
def frac(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """The fractional part, with the operand's sign."""
    x = builder.widened(self)
    return builder.convert(builder.prim("sub", x, builder.prim("trunc", x)), self.dtype)


@decomposes("aten.square.default")
def square(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """x * x."""
    x = builder.widened(self)
    return builder.convert(builder.prim("mul", x, x), self.dtype)


@decomposes("aten.isnan.default")
def isnan(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """True where an element is NaN; never for integers."""
    return _float_predicate(builder, "isnan", self, of_integers=False)


@decomposes("aten.isinf.default")
def isinf(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """True where an element is infinite; never for integers."""
    return _float_predicate(builder, "isinf", self, of_integers=False)


@decomposes("aten.isfinite.default")
def isfinite(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """True where an element is neither infinite nor NaN; always for integers."""
    return _float_predicate(builder, "isfinite", self, of_integers=True)


@decomposes("aten.isposinf.default")
def isposinf(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """True at +infinity."""
    if not self.dtype.is_float:
        return builder.full(False, DType.BOOL, self.shape)
    return builder.apply("eq", builder.widened(self), float("inf"))


@decomposes("aten.isneginf.default")
def isneginf(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """True at -infinity."""
    if not self.dtype.is_float:
        return builder.full(False, DType.BOOL, self.shape)
    return builder.apply("eq", builder.widened(self), float("-inf"))


@decomposes("aten.signbit.default")
def signbit(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """True for negative numbers and for -0.0."""
    if self.dtype.is_float:
        return builder.prim("signbit", builder.widened(self))
    return builder.apply("lt", builder.convert(self, DType.I64), 0)


@decomposes("aten.nan_to_num.default")
def nan_to_num(
    builder: PrimsBuilder,
    self: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """NaN and infinities replaced; by default, infinities by the type's largest numbers."""
    if not self.dtype.is_float:
        return self
    largest = LARGEST[self.dtype]
    x = builder.widened(self)
    top = builder.cast(largest if posinf is None else posinf, self.dtype)
    bottom = builder.cast(-largest if neginf is None else neginf, self.dtype)
    middle = builder.cast(0.0 if nan is None else nan, self.dtype)
    x = builder.where(builder.prim("isnan", x), builder.widened(middle), x)
    x = builder.where(builder.apply("eq", x, float("inf")), builder.widened(top), x)
    x = builder.where(builder.apply("eq", x, float("-inf")), builder.widened(bottom), x)
    return builder.convert(x, self.dtype)


LARGEST = {
    DType.F64: 1.7976931348623157e308,
    DType.F32: 3.4028234663852886e38,
    DType.F16: 65504.0,
    DType.BF16: 3.3895313892515355e38,
    DType.F8E4M3FN: 448.0,
    DType.F8E5M2: 57344.0,
}
"""The largest finite number of each floating type."""


def _float_predicate(builder: PrimsBuilder, prim: str, x: Tensor, *, of_integers: bool) -> Tensor:
    if not x.dtype.is_float:
        return builder.full(of_integers, DType.BOOL, x.shape)
    return builder.prim(prim, builder.widened(x))
