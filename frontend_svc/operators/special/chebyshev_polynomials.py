"""Chebyshev polynomials of four kinds and their shifted forms; the order is data.

Low orders use the recurrence. Higher orders use sines and cosines of multiples of an angle for x in
[-1, 1], and powers of x + sqrt(x * x - 1) outside, so that every order has the same cost. Results
beyond the largest float are infinite; PyTorch's recurrence returns NaN for them.

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
"""The largest order by the recurrence; PyTorch changes to angles there, or two orders earlier."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of polynomials.

    `first` is order 1. `inside` is a function of the angle and the order. `outside` is a function
    of the hyperbolic angle and the order: the polynomial of |x|, divided by (|x| + sqrt(x * x -
    1))**n. `at_one` is the polynomial at 1. `mirrored` names the kind that is (-1)**n times this
    one at -x.
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
    """The polynomial of a whole order; 0 for negative orders."""
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


def chebyshev_polynomial(
    builder: PrimsBuilder, x: Operand, n: Operand, *, kind: _Kind, is_shifted: bool
) -> Tensor:
    """The polynomial of a kind and an order; shifted ones are polynomials of 2 * x - 1."""
    dtype = float_dtype(builder.promoted(x, n))
    at, order = (computing(builder, builder.cast(operand, dtype), dtype) for operand in (x, n))
    shape = builder.extents.broadcast([at.tensor.shape, order.tensor.shape])
    at, order = (Real(builder, builder.expand(r.tensor, shape)) for r in (at, order))
    if is_shifted:
        at = at + at - 1.0
    return builder.convert(_polynomial(kind, at, order.of("trunc")).tensor, dtype)


for _letter, _kind in _KINDS.items():
    for _prefix in ("", "shifted_"):
        _name = f"aten.special_{_prefix}chebyshev_polynomial_{_letter}"
        decomposes(
            f"{_name}.default",
            f"{_name}.x_scalar",
            f"{_name}.n_scalar",
            fixed={"kind": _kind, "is_shifted": bool(_prefix)},
        )(chebyshev_polynomial)
