"""Chebyshev polynomials of four kinds and their shifted forms; the order is data.

Low orders come from the recurrence. Higher ones are sines and cosines of multiples of an angle for
x inside of [-1, 1], and powers of x + sqrt(x * x - 1) outside, so that any order costs the same.
What is beyond the largest float is infinite; PyTorch's recurrence makes NaN of it.

Source: J. C. Mason and D. C. Handscomb, Chebyshev Polynomials (2003), chapter 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.real_formulas import Real, computing
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor

_MOST_STEPS = 8
"""The largest order by the recurrence: PyTorch turns to angles there, or two earlier."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of polynomials.

    `first` is order 1. `inside` takes the angle and the order. `outside` takes the hyperbolic angle
    and the order, and gives the polynomial of |x| over (|x| + sqrt(x * x - 1))**n. `at_one` is the
    polynomial at 1. `mirrored` names the kind that gives (-1)**n times this one at -x.
    """

    first: Callable[[Real], Real]
    inside: Callable[[Real, Real], Real]
    outside: Callable[[Real, Real], Real]
    at_one: Callable[[Real], Real]
    mirrored: str


_KINDS = {
    "t": _Kind(
        first=lambda x: x,
        inside=lambda a, n: (n * a).of("cos"),
        outside=lambda a, n: ((n * a) * -2.0).of("exp") * 0.5 + 0.5,
        at_one=lambda n: n.full(1.0),
        mirrored="t",
    ),
    "u": _Kind(
        first=lambda x: x + x,
        inside=lambda a, n: ((n + 1.0) * a).of("sin") / a.of("sin"),
        outside=lambda a, n: ((n + 1.0) * a * -2.0).of("expm1") / (a * -2.0).of("expm1"),
        at_one=lambda n: n + 1.0,
        mirrored="u",
    ),
    "v": _Kind(
        first=lambda x: x + x - 1.0,
        inside=lambda a, n: ((n + 0.5) * a).of("cos") / (a * 0.5).of("cos"),
        outside=lambda a, n: (
            ((n + n + 1.0) * -a).of("exp") / ((-a).of("exp") + 1.0) + 1.0 / ((-a).of("exp") + 1.0)
        ),
        at_one=lambda n: n.full(1.0),
        mirrored="w",
    ),
    "w": _Kind(
        first=lambda x: x + x + 1.0,
        inside=lambda a, n: ((n + 0.5) * a).of("sin") / (a * 0.5).of("sin"),
        outside=lambda a, n: ((n + n + 1.0) * -a).of("expm1") / (-a).of("expm1"),
        at_one=lambda n: n + n + 1.0,
        mirrored="v",
    ),
}


def _polynomial(kind: _Kind, x: Real, n: Real) -> Real:
    """The polynomial of an order that is a whole number; 0 for negative orders."""
    size = x.of("abs")
    is_below = x < 0.0
    mirrored = _KINDS[kind.mirrored]
    excess = size - 1.0
    root = (excess * (size + 1.0)).of("sqrt")
    angle = (excess + root).of("log1p")
    ratio = is_below.where(mirrored.outside(angle, n), kind.outside(angle, n))
    beyond = (size + root).with_("pow", n) * ratio
    edge = is_below.where(mirrored.at_one(n), kind.at_one(n))
    beyond = size.is_(1.0).where(edge, beyond)
    half = n * 0.5
    is_negative = is_below & half.is_(half.of("floor")).of("logical_not")
    beyond = is_negative.where(-beyond, beyond)
    high = (size < 1.0).where(kind.inside(x.of("acos"), n), beyond)
    result = (n > float(_MOST_STEPS)).where(high, _recurrence(kind, x, n))
    return (n < 0.0).where(0.0, result)


def _recurrence(kind: _Kind, x: Real, n: Real) -> Real:
    """The polynomial of order n, for n up to `_MOST_STEPS`."""
    twice = x + x
    before, current = x.full(1.0), kind.first(x)
    result = (n < 1.0).where(before, current)
    for k in range(2, _MOST_STEPS + 1):
        before, current = current, twice * current - before
        result = (n < float(k)).where(result, current)
    return result


def _register(letter: str, prefix: str, change: Callable[[Real], Real]) -> None:
    def polynomial(builder: PrimsBuilder, x: Operand, n: Operand) -> Tensor:
        dtype = float_dtype(builder.promoted(x, n))
        x_wide, order = (
            computing(builder, builder.cast(operand, dtype), dtype) for operand in (x, n)
        )
        shape = builder.extents.broadcast([x_wide.tensor.shape, order.tensor.shape])
        x_wide, order = (Real(builder, builder.expand(r.tensor, shape)) for r in (x_wide, order))
        result = _polynomial(_KINDS[letter], change(x_wide), order.of("trunc"))
        return builder.convert(result.tensor, dtype)

    name = f"aten.special_{prefix}chebyshev_polynomial_{letter}"
    decomposes(f"{name}.default", f"{name}.x_scalar", f"{name}.n_scalar")(polynomial)


for _letter in _KINDS:
    _register(_letter, "", lambda x: x)
    _register(_letter, "shifted_", lambda x: x + x - 1.0)
