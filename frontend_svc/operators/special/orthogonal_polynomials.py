"""Hermite, Laguerre and Legendre polynomials whose order the graph states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.real_formulas import Real, RealFunction, computing
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr

_LARGEST_ORDER = 64


@dataclass(frozen=True, slots=True)
class _Family:
    """Polynomials by a recurrence: `first` is order 1.

    `following` is a function of x, order k, order k - 1, and k; it returns order k + 1.

    Source: Abramowitz and Stegun, table 22.7.
    """

    first: RealFunction
    following: Callable[[Real, Real, Real, int], Real]


_FAMILIES = {
    "hermite_polynomial_h": _Family(
        lambda x: x + x, lambda x, p, before, k: (x + x) * p - before * (2 * k)
    ),
    "hermite_polynomial_he": _Family(lambda x: x, lambda x, p, before, k: x * p - before * k),
    "laguerre_polynomial_l": _Family(
        lambda x: 1.0 - x,
        lambda x, p, before, k: ((1.0 - x + 2 * k) * p - before * k) / (k + 1),
    ),
    "legendre_polynomial_p": _Family(
        lambda x: x, lambda x, p, before, k: (x * (2 * k + 1) * p - before * k) / (k + 1)
    ),
}


def _polynomial(family: _Family, x: Real, order: int) -> Real:
    """The polynomial of an order; 0 for negative orders."""
    if order < 1:
        return x.full(1.0 if order == 0 else 0.0)
    before, current = x.full(1.0), family.first(x)
    for k in range(1, order):
        before, current = current, family.following(x, current, before, k)
    return current


def orthogonal_polynomial(
    builder: PrimsBuilder, x: Tensor, n: Number, *, family: _Family
) -> Tensor:
    """The polynomial of a family and an order."""
    if isinstance(n, Expr):
        raise NotDecomposedError("the order is a symbolic size")
    if isinstance(n, float) and not n.is_integer():
        raise InvalidGraphError(f"a polynomial of order {n}; expected a whole number")
    if n > _LARGEST_ORDER:
        raise NotDecomposedError(f"a polynomial of order above {_LARGEST_ORDER}")
    dtype = float_dtype(builder.promoted(x, n))
    result = _polynomial(family, computing(builder, x, dtype), int(n))
    return builder.convert(result.tensor, dtype)


for _name, _family in _FAMILIES.items():
    decomposes(
        f"aten.special_{_name}.n_scalar",
        fixed={"family": _family},
        note=f"extern above order {_LARGEST_ORDER}",
    )(orthogonal_polynomial)
