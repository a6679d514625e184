"""The layout of a fusion graph: edges point down, and boxes do not overlap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.pages.layered_layout import layered_layout


@st.composite
def acyclic_graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 12))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = draw(st.lists(pairs, max_size=30))
    return count, [(min(pair), max(pair)) for pair in edges if pair[0] != pair[1]]


@given(acyclic_graphs())
def test_edges_point_down_and_nodes_of_a_layer_are_apart(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    count, edges = graph
    layout = layered_layout(count, edges)
    for (first, second), bends in zip(edges, layout.bends, strict=True):
        assert layout.layers[first] < layout.layers[second]
        assert len(bends) == layout.layers[second] - layout.layers[first] - 1
    for layer in set(layout.layers):
        columns = sorted(
            c for c, at in zip(layout.columns, layout.layers, strict=True) if at == layer
        )
        assert all(right - left > 0.999 for left, right in pairwise(columns))
    assert min(layout.columns) >= 0
    assert max(layout.columns) + 1 <= layout.width + 1e-9


def test_a_value_that_every_layer_reads_does_not_exhaust_memory() -> None:
    chain = [(n, n + 1) for n in range(1999)]
    layout = layered_layout(2000, chain + [(0, n) for n in range(2, 2000)])
    assert layout.layers == tuple(range(2000))
    assert sum(map(len, layout.bends)) == 0


def test_a_graph_without_nodes_is_empty() -> None:
    layout = layered_layout(0, [])
    assert (layout.layers, layout.columns, layout.bends) == ((), (), ())
