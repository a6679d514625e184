"""Modified Bessel functions of orders 0 and 1, by Chebyshev series in the computing type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from frontend_svc.operators import bessel_coefficients as tables
from frontend_svc.operators.lowering import Lowering
from frontend_svc.operators.promotion import float_dtype
from frontend_svc.operators.registry import decomposes
from frontend_svc.operators.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_EPSILON = {DType.F64: 2.0**-53, DType.F32: 2.0**-24}
_SMALL_I = 8.0
_SMALL_K = 2.0

_Function = Callable[[Lowering, Tensor], Tensor]


def chebyshev(op: Lowering, u: Tensor, series: Sequence[float]) -> Tensor:
    """A Chebyshev series at u in [-1, 1], of as many terms as show in the type of u.

    Source: C. W. Clenshaw, A note on the summation of Chebyshev series (1955).
    """
    least = max(map(abs, series)) * _EPSILON[u.dtype] / 4
    terms = list(series)
    while len(terms) > 2 and abs(terms[-1]) < least:
        terms.pop()
    twice = op.apply("mul", u, 2.0)
    last: Tensor | None = None
    current = op.full(terms[-1], u.dtype, u.shape)
    for term in reversed(terms[1:-1]):
        following = op.apply("add", op.prim("mul", twice, current), term)
        if last is not None:
            following = op.prim("sub", following, last)
        last, current = current, following
    total = op.apply("add", op.prim("mul", u, current), terms[0])
    return total if last is None else op.prim("sub", total, last)


def _scaled_i(op: Lowering, x: Tensor, order: int) -> Tensor:
    """exp(-|x|) * I(x)."""
    small, large = (
        (tables.I1_SMALL, tables.I1_LARGE) if order else (tables.I0_SMALL, tables.I0_LARGE)
    )
    size = op.prim("abs", x)
    near = chebyshev(op, op.apply("sub", op.apply("mul", size, 0.25), 1.0), small)
    if order:
        near = op.prim("mul", near, size)
    inverse = op.apply("sub", op.apply("div", 2 * _SMALL_I, size), 1.0)
    far = op.prim("div", chebyshev(op, inverse, large), op.prim("sqrt", size))
    result = op.where(op.apply("le", size, _SMALL_I), near, far)
    if not order:
        return result
    return op.where(op.apply("lt", x, 0.0), op.prim("neg", result), result)


def _plain_i(op: Lowering, x: Tensor, order: int) -> Tensor:
    return op.prim("mul", op.prim("exp", op.prim("abs", x)), _scaled_i(op, x, order))


def _k(op: Lowering, x: Tensor, order: int, *, is_scaled: bool) -> Tensor:
    """K(x), times exp(x) if scaled; infinite at 0, NaN below."""
    small, large = (
        (tables.K1_SMALL, tables.K1_LARGE) if order else (tables.K0_SMALL, tables.K0_LARGE)
    )
    square = op.apply("mul", op.prim("mul", x, x), 0.5)
    near = chebyshev(op, op.apply("sub", square, 1.0), small)
    logarithm = op.prim("log", op.apply("mul", x, 0.5))
    product = op.prim("mul", logarithm, _plain_i(op, x, order))
    if order:
        near = op.prim("add", op.prim("div", near, x), product)
    else:
        near = op.prim("sub", near, product)
    inverse = op.apply("sub", op.apply("div", 2 * _SMALL_K, x), 1.0)
    far = op.prim("div", chebyshev(op, inverse, large), op.prim("sqrt", x))
    if is_scaled:
        near = op.prim("mul", near, op.prim("exp", x))
    else:
        far = op.prim("mul", far, op.prim("exp", op.prim("neg", x)))
    result = op.where(op.apply("le", x, _SMALL_K), near, far)
    result = op.where(op.apply("eq", x, 0.0), math.inf, result)
    return op.where(op.apply("lt", x, 0.0), math.nan, result)


_FUNCTIONS: dict[str, _Function] = {
    "i0": lambda op, x: _plain_i(op, x, 0),
    "special_i0e": lambda op, x: _scaled_i(op, x, 0),
    "special_i1": lambda op, x: _plain_i(op, x, 1),
    "special_i1e": lambda op, x: _scaled_i(op, x, 1),
    "special_modified_bessel_i0": lambda op, x: _plain_i(op, x, 0),
    "special_modified_bessel_i1": lambda op, x: _plain_i(op, x, 1),
    "special_modified_bessel_k0": lambda op, x: _k(op, x, 0, is_scaled=False),
    "special_modified_bessel_k1": lambda op, x: _k(op, x, 1, is_scaled=False),
    "special_scaled_modified_bessel_k0": lambda op, x: _k(op, x, 0, is_scaled=True),
    "special_scaled_modified_bessel_k1": lambda op, x: _k(op, x, 1, is_scaled=True),
}


def _register(name: str, function: _Function, parameter: str) -> None:
    def of_self(op: Lowering, self: Tensor) -> Tensor:
        dtype = float_dtype(self.dtype)
        if dtype.compute_dtype not in _EPSILON:
            raise InvalidGraphError(f"a Bessel function of type {dtype!r}; expected a float")
        return op.convert(function(op, op.convert(self, dtype.compute_dtype)), dtype)

    def of_x(op: Lowering, x: Tensor) -> Tensor:
        return of_self(op, x)

    decomposes(f"aten.{name}.default")(of_self if parameter == "self" else of_x)


for _name, _function in _FUNCTIONS.items():
    _register(_name, _function, "x" if "scaled_modified" in _name else "self")
