"""The rewrites of Prims graphs: what they change, what they leave, and that meaning stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from frontend_svc.decompose.passes.fold_constants import FOLD_CONSTANTS
from frontend_svc.decompose.passes.remove_dead_code import REMOVE_DEAD_CODE
from frontend_svc.decompose.passes.simplify_prims import SIMPLIFY_PRIMS
from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.decompose.report import NodeOutcome
from frontend_svc.decompose.rewriting import RewritePass, RewriteResult
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Graph, Ref, TensorType
from kernelfarm.ir.interpret import numpy_dtype, run_graph
from tests.support.captured_graphs import one_node_graph, prim_names
from tests.support.small_graphs import tensor

F32, I64 = DType.F32, DType.I64
Build = Callable[[GraphBuilder], int]


def graph_of(build: Callable[..., int], *inputs: TensorType) -> Graph:
    """A Prims graph: `build(builder, *input ids)` gives the output."""
    builder = GraphBuilder()
    values = [builder.add_input(kind) for kind in inputs]
    result = build(builder, *values)
    kind = builder.type_of(result)
    return builder.build([Ref(result)], [tensor(*kind.shape, dtype=kind.dtype)])


def applied(graph: Graph, *passes: RewritePass) -> Graph:
    for step in (*passes, REMOVE_DEAD_CODE):
        graph = step.rewrite(graph, graph).graph
    return graph


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def shape(*extents: int) -> tuple[Any, ...]:
    return tuple(as_expr(extent) for extent in extents)


def inputs_for(graph: Graph) -> list[Any]:
    source = np.random.default_rng(0)
    found = []
    for entry in graph.inputs:
        assert isinstance(entry.kind, TensorType)
        extents = [extent.as_int() for extent in entry.kind.shape]
        found.append((source.normal(size=extents) * 4).astype(numpy_dtype(entry.kind.dtype)))
    return found


def assert_same_meaning(before: Graph, after: Graph) -> None:
    values = inputs_for(before)
    np.testing.assert_array_equal(run_graph(after, values)[0], run_graph(before, values)[0])


def full(b: GraphBuilder, value: Any, *extents: int, dtype: DType = F32) -> int:
    return b.add("full", dtype=dtype, shape=shape(*extents), value=value)


def iota(b: GraphBuilder, length: int) -> int:
    return b.add("iota", dtype=I64, length=as_expr(length))


SIMPLIFICATIONS: dict[str, tuple[Sequence[TensorType], Callable[..., int], list[str]]] = {
    "a reshape of a reshape is one": (
        [tensor(4, 6)],
        lambda b, x: b.add("reshape", b.add("reshape", x, shape=(24,)), shape=(2, 12)),
        ["reshape"],
    ),
    "a reshape there and back is nothing": (
        [tensor(4, 6)],
        lambda b, x: b.add("reshape", b.add("reshape", x, shape=(24,)), shape=(4, 6)),
        [],
    ),
    "a permute of a permute is one": (
        [tensor(2, 3, 4)],
        lambda b, x: b.add("permute", b.add("permute", x, dims=(1, 0, 2)), dims=(2, 1, 0)),
        ["permute"],
    ),
    "a permute there and back is nothing": (
        [tensor(2, 3, 4)],
        lambda b, x: b.add("permute", b.add("permute", x, dims=(1, 2, 0)), dims=(2, 0, 1)),
        [],
    ),
    "a permute that moves only ones is a reshape": (
        [tensor(2, 1, 4)],
        lambda b, x: b.add("permute", x, dims=(1, 0, 2)),
        ["reshape"],
    ),
    "a broadcast of a broadcast is one": (
        [tensor(3)],
        lambda b, x: b.add(
            "broadcast_in_dim",
            b.add("broadcast_in_dim", x, dims=(1,), shape=(1, 3)),
            dims=(1, 2),
            shape=(5, 4, 3),
        ),
        ["broadcast_in_dim"],
    ),
    "a slice of everything is nothing": (
        [tensor(5)],
        lambda b, x: b.add("slice", x, starts=(0,), limits=(5,), steps=(1,)),
        [],
    ),
    "a slice of a slice is one": (
        [tensor(9)],
        lambda b, x: b.add(
            "slice",
            b.add("slice", x, starts=(2,), limits=(8,), steps=(1,)),
            starts=(1,),
            limits=(5,),
            steps=(2,),
        ),
        ["slice"],
    ),
    "two flips are nothing": (
        [tensor(5)],
        lambda b, x: b.add("flip", b.add("flip", x, dims=(0,)), dims=(0,)),
        [],
    ),
    "times one is nothing": ([tensor(4)], lambda b, x: b.add("mul", full(b, 1.0, 4), x), []),
    "over one is nothing": ([tensor(4)], lambda b, x: b.add("div", x, full(b, 1.0, 4)), []),
    "minus zero is nothing": ([tensor(4)], lambda b, x: b.add("sub", x, full(b, 0.0, 4)), []),
    "plus zero is kept for floats": (
        [tensor(4)],
        lambda b, x: b.add("add", x, full(b, 0.0, 4)),
        ["full", "add"],
    ),
    "plus zero is nothing for integers": (
        [tensor(4, dtype=I64)],
        lambda b, x: b.add("add", x, full(b, 0, 4, dtype=I64)),
        [],
    ),
    "widening and narrowing again is nothing": (
        [tensor(4, dtype=DType.F16)],
        lambda b, x: b.add("convert", b.add("convert", x, dtype=F32), dtype=DType.F16),
        [],
    ),
    "narrowing and widening again is kept, for it rounds": (
        [tensor(4)],
        lambda b, x: b.add("convert", b.add("convert", x, dtype=DType.F16), dtype=F32),
        ["convert", "convert"],
    ),
    "a gather by two ranges is a view": (
        [tensor(4, 5)],
        lambda b, x: b.add(
            "gather_nd",
            x,
            b.add("broadcast_in_dim", iota(b, 4), dims=(0,), shape=(4, 5)),
            b.add("broadcast_in_dim", iota(b, 5), dims=(1,), shape=(4, 5)),
            dims=(0, 1),
        ),
        [],
    ),
    "a gather by crossed ranges is a transpose": (
        [tensor(4, 5)],
        lambda b, x: b.add(
            "gather_nd",
            x,
            b.add("broadcast_in_dim", iota(b, 4), dims=(1,), shape=(5, 4)),
            b.add("broadcast_in_dim", iota(b, 5), dims=(0,), shape=(5, 4)),
            dims=(0, 1),
        ),
        ["permute"],
    ),
    "a gather at one row and a shifted range is a slice": (
        [tensor(4, 5, 2)],
        lambda b, x: b.add(
            "gather_nd",
            x,
            full(b, 2, 3, dtype=I64),
            b.add("add", iota(b, 3), full(b, 1, 3, dtype=I64)),
            dims=(0, 1),
        ),
        ["slice", "reshape"],
    ),
    "a gather along the diagonal stays": (
        [tensor(4, 4)],
        lambda b, x: b.add("gather_nd", x, iota(b, 4), iota(b, 4), dims=(0, 1)),
        ["iota", "gather_nd"],
    ),
    "a take of a range is a slice": (
        [tensor(4, 6)],
        lambda b, x: b.add("take", x, iota(b, 3), dim=1),
        ["slice"],
    ),
}


@pytest.mark.parametrize("name", SIMPLIFICATIONS)
def test_simplification_keeps_the_meaning(name: str) -> None:
    inputs, build, expected = SIMPLIFICATIONS[name]
    before = graph_of(build, *inputs)
    after = applied(before, SIMPLIFY_PRIMS)
    assert ops(after) == expected
    assert_same_meaning(before, after)


def test_a_take_beyond_the_axis_stays_an_error() -> None:
    graph = graph_of(lambda b, x: b.add("take", x, iota(b, 7), dim=1), tensor(4, 6))
    assert ops(applied(graph, FOLD_CONSTANTS, SIMPLIFY_PRIMS)) == ["iota", "take"]


def test_a_known_condition_picks_its_branch() -> None:
    def build(b: GraphBuilder, x: int, y: int) -> int:
        return b.add("where", full(b, False, 4, dtype=DType.BOOL), x, y)

    graph = graph_of(build, tensor(4), tensor(4))
    after = applied(graph, SIMPLIFY_PRIMS)
    assert after.outputs == (Ref(1),)


def test_a_uniform_running_sum_folds() -> None:
    def build(b: GraphBuilder, x: int) -> int:
        steps = b.add("sub", iota(b, 8), iota(b, 8))
        same = b.add("eq", b.add("cumsum", steps, dim=0), full(b, 0, 8, dtype=I64))
        return b.add("where", same, x, full(b, 9.0, 8))

    graph = graph_of(build, tensor(8))
    after = applied(graph, FOLD_CONSTANTS, SIMPLIFY_PRIMS)
    assert ops(after) == []
    assert_same_meaning(graph, after)


def test_an_arithmetic_series_folds_to_iota() -> None:
    def build(b: GraphBuilder) -> int:
        ones = full(b, 3, 5, dtype=I64)
        return b.add("cumsum", ones, dim=0)  # 3, 6, 9, ...

    graph = graph_of(build)
    after = applied(graph, FOLD_CONSTANTS)
    assert ops(after) == ["full", "iota", "mul", "add"]
    assert_same_meaning(graph, after)


def test_uniform_values_of_any_size_fold() -> None:
    def build(b: GraphBuilder) -> int:
        return b.add("mul", full(b, 2.0, 4096, 4096), full(b, 3.0, 4096, 4096))

    (node,) = applied(graph_of(build), FOLD_CONSTANTS).nodes
    assert (node.op, node.attr("value")) == ("full", 6.0)


def test_constants_that_are_no_series_stay_as_they_are() -> None:
    def build(b: GraphBuilder) -> int:
        return b.add("mul", iota(b, 5), iota(b, 5))

    graph = graph_of(build)
    after = applied(graph, FOLD_CONSTANTS, SIMPLIFY_PRIMS)
    assert ops(after) == ["iota", "mul"]
    assert after.inputs == graph.inputs


def test_folding_tells_what_it_folded() -> None:
    builder = GraphBuilder()
    with builder.origin(3):
        value = builder.add("add", full(builder, 1, 4, dtype=I64), full(builder, 2, 4, dtype=I64))
    graph = builder.build([Ref(value)], [tensor(4, dtype=I64)])
    rewritten: RewriteResult = FOLD_CONSTANTS.rewrite(graph, graph)
    (note,) = rewritten.notes
    assert (note.origins, note.outcome) == ((3,), NodeOutcome.FOLDED)
    assert note.reason == "every element is 3"


def test_a_graph_without_constants_is_the_same_object_after_folding() -> None:
    graph = graph_of(lambda b, x: b.add("neg", x), tensor(3))
    assert FOLD_CONSTANTS.rewrite(graph, graph).graph is graph
    assert REMOVE_DEAD_CODE.rewrite(graph, graph).graph is graph


def test_a_running_sum_of_an_input_is_a_scan() -> None:
    boolean, result = tensor(4, dtype=DType.BOOL), tensor(4, dtype=I64)
    graph = one_node_graph("aten.cumsum.default", [boolean], [Ref(0), 0], result)
    lowered = decompose_to_prims(graph)
    assert prim_names(lowered) == ["convert", "cumsum"]
    assert lowered.report[0].outcome is NodeOutcome.DECOMPOSED


def test_unused_random_numbers_are_still_drawn_and_unused_products_are_not() -> None:
    builder = GraphBuilder()
    x = builder.add_input(tensor(3, 3))
    for op, is_contraction in (("aten.rand.default", False), ("aten.mm.default", True)):
        builder.add_extern(op, 0, [x], [tensor(3, 3)], is_contraction=is_contraction)
    graph = builder.build([Ref(x)], [tensor(3, 3)])
    (node,) = REMOVE_DEAD_CODE.rewrite(graph, graph).graph.nodes
    assert node.attr("op") == "aten.rand.default"


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
