"""Values and estimates of expressions."""

from __future__ import annotations

import pytest

from kernelfarm.ir.algebra.expr import Expr, symbol

PAGES: Expr = symbol("s0") // (symbol("s1") * symbol("s2"))
FIT = {"s0": 96, "s1": 4, "s2": 3}
UNFIT = {"s0": 9, "s1": 5, "s2": 7}


def test_a_divisor_that_is_zero_is_one_in_an_estimate_alone() -> None:
    place = symbol("s0") % PAGES + symbol("s0") // PAGES
    assert place.evaluate(FIT) == place.estimate(FIT) == 12
    assert place.estimate(UNFIT) == 9
    with pytest.raises(ZeroDivisionError):
        place.evaluate(UNFIT)
