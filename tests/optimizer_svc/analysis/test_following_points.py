"""Which pointwise prims follow a value without a kernel that is needed anyway."""

from __future__ import annotations

import pytest

from kernelfarm.ir.graph_ir import Graph
from optimizer_svc.analysis.following_points import following_points
from optimizer_svc.analysis.graph_facts import graph_facts
from tests.support.prims_graphs import Maker, tensor, tensor_with_strides


def product(make: Maker) -> int:
    """The result of an operator of the framework, of shape (4, 8)."""
    x = make.add_input(tensor(4, 8))
    kind = tensor_with_strides(4, 8)
    (y,) = make.add_extern("aten.mm.default", 0, [x], [kind], is_contraction=True)
    return y


def points(graph: Graph, value: int) -> frozenset[int]:
    return following_points(graph_facts(graph), value)


def test_points_are_followed_through_views_up_to_outputs_and_the_framework() -> None:
    make = Maker([])
    y = product(make)
    first = make.add("exp", make.add("permute", y, dims=(1, 0)))
    second = make.add("neg", first)
    kind = tensor_with_strides(8, 4)
    (z,) = make.add_extern("aten.mm.default", 1, [second], [kind], is_contraction=True)
    behind = make.add("abs", z)
    assert points(make.returning(first, behind), y) == {first, second}


def test_what_is_not_read_by_points_has_none() -> None:
    make = Maker([])
    y = product(make)
    assert points(make.returning(make.add("permute", y, dims=(1, 0))), y) == frozenset()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_reduction_computes_the_points_before_it(is_first: bool) -> None:
    make = Maker([])
    y = product(make)
    shown = make.add("exp", y)
    total = make.add("sum", y if is_first else make.add("neg", shown), dims=(1,))
    assert points(make.returning(shown, total), y) == frozenset()


def test_a_long_chain_is_not_followed_to_its_end() -> None:
    make = Maker([])
    value = y = product(make)
    for number in range(100):
        value = make.add("neg" if number % 2 else "abs", value)
    assert points(make.returning(value), y) == frozenset()
