"""From a captured graph to Prims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.decompose.report import NodeOutcome
from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Graph, Ref
from kernelfarm.ir.prim_attrs import normal_attrs
from tests.support.captured_graphs import one_node_graph, prim_names
from tests.support.small_graphs import tensor


def test_a_running_sum_of_an_input_is_a_scan() -> None:
    boolean, result = tensor(4, dtype=DType.BOOL), tensor(4, dtype=DType.I64)
    graph = one_node_graph("aten.cumsum.default", [boolean], [Ref(0), 0], result)
    lowered = decompose_to_prims(graph)
    assert prim_names(lowered) == ["convert", "cumsum"]
    assert lowered.report[0].outcome is NodeOutcome.DECOMPOSED


def test_equal_values_are_computed_once() -> None:
    graph = one_node_graph("aten.var_mean.correction", [tensor(4, 8)], [Ref(0), (1,)], tensor(4))
    node = graph.nodes[0]
    two = (tensor(4), tensor(4))
    pair = type(node)(node.op, node.args, node.attrs, (1, 2), two)
    again = type(node)("aten.mean.dim", (Ref(0), (1,)), (), (3,), (tensor(4),))
    outputs = (Ref(1), Ref(2), Ref(3))
    full_graph = Graph("aten", (), graph.inputs, (pair, again), outputs, (*two, tensor(4)))
    lowered = decompose_to_prims(full_graph)
    assert prim_names(lowered).count("sum") == 2
    assert lowered.graph.outputs[1] == lowered.graph.outputs[2]


@pytest.mark.parametrize(
    ("scales", "is_unscaled"),
    [({}, True), ({"beta": 1, "alpha": 1.0}, True), ({"beta": 2}, None), ({"alpha": 0.5}, None)],
)
def test_a_sum_of_a_product_says_that_it_scales_nothing(
    scales: dict[str, float], is_unscaled: bool | None
) -> None:
    types = [tensor(6), tensor(4, 3), tensor(3, 6)]
    args = [Ref(0), Ref(1), Ref(2)]
    graph = one_node_graph("aten.addmm.default", types, args, tensor(4, 6))
    node = replace(graph.nodes[0], attrs=normal_attrs(dict(scales)))
    (lowered,) = decompose_to_prims(replace(graph, nodes=(node,))).graph.nodes
    assert lowered.attr("is_unscaled") is is_unscaled


@pytest.mark.parametrize(
    ("stated", "scale", "is_causal"),
    [
        ({}, 0.25, None),
        ({"scale": 0.5}, 0.5, None),
        ({"scale": 2}, 2.0, None),
        ({"scale": 10**400}, None, None),
        ({"scale": float("nan")}, None, None),
        ({"dropout_p": 0.1}, None, None),
        ({"is_causal": True}, 0.25, True),
        ({"is_causal": False}, 0.25, None),
        ({"is_causal": 7}, None, None),
    ],
)
def test_attention_says_how_it_scales_its_scores(
    stated: dict[str, float], scale: float | None, is_causal: bool | None
) -> None:
    """Unless it has dropout; a scale comes from outside and may be anything."""
    heads = tensor(1, 2, 1, 16)
    args = [Ref(0), Ref(1), Ref(2)]
    op = "aten.scaled_dot_product_attention.default"
    graph = one_node_graph(op, [heads] * 3, args, heads)
    node = replace(graph.nodes[0], attrs=normal_attrs(dict(stated)))
    (lowered,) = decompose_to_prims(replace(graph, nodes=(node,))).graph.nodes
    assert lowered.attr("scale") == scale
    assert lowered.attr("is_causal") is is_causal
