"""Growth of the farm's compile time with the graph: import, decomposition, optimization, keys."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kernelfarm.ir.graph_ir import Graph
from kernelfarm.service.collector import collect_rarely
from tests.support.compile_steps import BAR_S, captured_layer, repeated, timed

ALLOWED_GROWTH = 1.8
"""Of the time per node, from 10 to 50 layers; a quadratic tenth of the work would give 1.5."""


@pytest.fixture(scope="module")
def layer() -> Iterator[Graph]:
    """One layer of a Llama; garbage collections are as rare as in the services."""
    before = gc.get_threshold()
    collect_rarely()
    yield captured_layer()
    gc.unfreeze()
    gc.set_threshold(*before)


def test_compile_time_is_near_linear_in_the_number_of_nodes(layer: Graph) -> None:
    timed(repeated(layer, 2), 2)  # fills tables and caches
    # Other load on the machine may affect one of a pair.
    pairs: list[tuple[float, float]] = []
    while len(pairs) < 3 and not any(many <= ALLOWED_GROWTH * few for few, many in pairs):
        pairs.append((_us_per_node(layer, 10), _us_per_node(layer, 50)))
    few, many = map(min, zip(*pairs, strict=True))
    assert many <= ALLOWED_GROWTH * few, pairs


@pytest.mark.slow
def test_thirteen_thousand_nodes_take_less_than_five_seconds(layer: Graph) -> None:
    row = timed(repeated(layer, 180), 180)
    assert row["nodes"] > 12_900
    assert row["total_s"] < BAR_S, row["steps_s"]


def _us_per_node(layer: Graph, count: int) -> float:
    row = timed(repeated(layer, count), count)
    return 1e6 * row["total_s"] / row["nodes"]
