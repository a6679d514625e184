"""The cheapest labels, beside all choices."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from optimizer_svc.analysis.minimum_cut import FOREVER, LabelCosts

_NODES = 6
_LONE = st.tuples(st.integers(0, _NODES - 1), st.booleans(), st.integers(0, 9))
_PAIR = st.tuples(st.integers(0, _NODES - 1), st.integers(0, _NODES - 1), st.integers(0, 9))


@given(lone=st.lists(_LONE, max_size=12), pairs=st.lists(_PAIR, max_size=12))
def test_no_choice_is_cheaper(
    lone: list[tuple[int, bool, int]], pairs: list[tuple[int, int, int]]
) -> None:
    costs = _costs(lone, pairs)
    choices = (dict(enumerate(labels)) for labels in product((False, True), repeat=_NODES))
    assert costs.cost_of(costs.cheapest()) == min(costs.cost_of(choice) for choice in choices)


def test_labels_that_cost_the_same_are_false() -> None:
    costs = _costs([(0, False, 3), (1, True, 3)], [(0, 1, 3)])
    assert costs.cheapest()[0] is False


def test_what_may_not_be_chosen_is_not_chosen() -> None:
    costs = _costs([(0, False, FOREVER), (1, True, FOREVER)], [(0, 1, 1000)])
    assert costs.cheapest() == {0: True, **dict.fromkeys(range(1, _NODES), False)}


def _costs(lone: list[tuple[int, bool, int]], pairs: list[tuple[int, int, int]]) -> LabelCosts:
    costs = LabelCosts()
    for node in range(_NODES):
        costs.add_node(node)
    for node, label, cost in lone:
        costs.add(node, label=label, cost=cost)
    for a, b, cost in pairs:
        costs.add_if_different(a, b, cost)
    return costs
