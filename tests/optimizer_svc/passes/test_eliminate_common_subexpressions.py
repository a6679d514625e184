"""Equal nodes become one; numbers that only compare equal do not."""

from __future__ import annotations

from optimizer_svc.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tests.support.prims_graphs import Maker, tensor


def test_zeros_of_both_signs_are_two_constants() -> None:
    make = Maker()
    x = make.add_input(tensor(3))
    graph = make.returning(
        make.add("copysign", x, make.full(0.0, 3)), make.add("copysign", x, make.full(-0.0, 3))
    )
    assert len(eliminate_common_subexpressions(graph).nodes) == 4
