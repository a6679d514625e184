"""Graphs that contradict their operators are refused by node, with what was seen and expected."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.graph_jobs import import_graph
from frontend_svc.operators import DECOMPOSED
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.check_graph import check_client_graph
from kernelfarm.ir.graph_ir import Arg, Graph, Input, Node, Ref, SizeSymbol, TensorType
from kernelfarm.wire import graph_to_proto
from tests.support.captured_graphs import one_node_graph
from tests.support.operator_samples.table import calls
from tests.support.single_operator import captured_graph
from tests.support.small_graphs import tensor

X = Ref(0)
Y = Ref(1)


def refusal(graph: Graph) -> str:
    with pytest.raises(InvalidGraphError) as caught:
        decompose_to_prims(graph)
    return str(caught.value)


def test_a_result_shape_that_contradicts_the_operator_is_refused() -> None:
    graph = one_node_graph("aten.add.Tensor", [tensor(4, 3), tensor(3)], [X, Y], tensor(4, 4))
    assert refusal(graph) == (
        "node 0 (aten.add.Tensor): result 0 is stated as f32(4, 4); expected f32(4, 3)"
    )


def test_a_result_type_that_contradicts_the_operator_is_refused() -> None:
    graph = one_node_graph(
        "aten.sum.dim_IntList", [tensor(4, dtype=DType.I32)], [X, (0,)], tensor(dtype=DType.I32)
    )
    assert refusal(graph) == (
        "node 0 (aten.sum.dim_IntList): result 0 is stated as i32(); expected i64()"
    )


def test_operands_that_do_not_broadcast_are_refused() -> None:
    graph = one_node_graph("aten.mul.Tensor", [tensor(4, 3), tensor(4)], [X, Y], tensor(4, 3))
    assert "shapes (4, 3) and (4) do not broadcast: 3 against 4" in refusal(graph)


def test_a_matrix_product_of_different_inner_extents_is_refused() -> None:
    graph = one_node_graph("aten.mm.default", [tensor(4, 3), tensor(5, 6)], [X, Y], tensor(4, 6))
    assert "node 0 (aten.mm.default): (4, 3) by (5, 6): inner extents 3 and 5" in refusal(graph)


def test_a_matrix_product_stated_with_a_wrong_shape_is_refused() -> None:
    for op, operands, wrong in (
        ("aten.mm.default", [tensor(4, 3), tensor(3, 6)], tensor(6, 4)),
        ("aten.bmm.default", [tensor(2, 4, 3), tensor(2, 3, 6)], tensor(2, 4, 5)),
        ("aten.addmm.default", [tensor(6), tensor(4, 3), tensor(3, 6)], tensor(4, 3)),
        ("aten.linear.default", [tensor(4, 3), tensor(6, 3), tensor(6)], tensor(4, 3)),
    ):
        args = [Ref(k) for k in range(len(operands))]
        assert "result 0 is stated as" in refusal(one_node_graph(op, operands, args, wrong))


def test_a_symbolic_extent_that_is_proven_different_is_refused() -> None:
    s0 = symbol("s0")
    symbols = [SizeSymbol("s0", 2, None, 8)]
    graph = one_node_graph("aten.neg.default", [tensor(s0)], [X], tensor(s0 + 1), symbols)
    assert "stated as f32(s0 + 1); expected f32(s0)" in refusal(graph)


def test_symbolic_extents_that_differ_for_all_sizes_are_refused() -> None:
    s0, s1 = symbol("s0"), symbol("s1")
    symbols = [SizeSymbol("s0", 2, 8), SizeSymbol("s1", 9, None)]
    inputs = [tensor(s0), tensor(s1)]
    graph = one_node_graph("aten.add.Tensor", inputs, [X, Y], tensor(s0), symbols)
    assert "do not broadcast: s0 against s1" in refusal(graph)


def test_extents_that_a_guard_made_equal_are_accepted() -> None:
    s0 = symbol("s0")
    symbols = [SizeSymbol("s0", 2, None, 8)]
    even = s0 // 2 * 2
    graph = one_node_graph(
        "aten.add.Tensor", [tensor(s0), tensor(even)], [X, Y], tensor(s0), symbols
    )
    lowered = decompose_to_prims(graph)
    assert lowered.graph.nodes[-1].types[0].shape == (s0,)


@pytest.mark.parametrize(
    ("op", "args", "attrs", "message"),
    [
        ("aten.sum.dim_IntList", [X, "rows"], {}, "text 'rows' where an integer belongs"),
        ("aten.sum.dim_IntList", [X, (7,)], {}, "dim 7 of a tensor with 2 axes; expected -2..1"),
        ("aten.sum.dim_IntList", [X, (0, -2)], {}, "name an axis twice"),
        ("aten.sum.dim_IntList", [], {}, "argument 'self' is missing"),
        ("aten.sum.dim_IntList", [X, (0,), 2.5], {}, "float 2.5 where true or false belongs"),
        ("aten.sum.default", [X], {"axis": 1}, "unknown argument 'axis'; expected self, dtype"),
        ("aten.sum.default", [X], {"dtype": "float"}, "text 'float' where an element type belongs"),
        ("aten.sum.default", [X, 1, 2], {}, "3 positional arguments; expected at most 1"),
        ("aten.sum.default", [X], {"self": X}, "argument 'self' is given twice"),
        ("aten.neg.default", [3], {}, "int 3 where a tensor belongs"),
        ("aten.neg.default", [None], {}, "nothing where a tensor belongs"),
        ("aten.view.default", [X, (3, 5)], {}, "sizes (3, 5) for 12 elements"),
        ("aten.view.default", [X, (-1, -1)], {}, "expected at most one -1"),
        ("aten.permute.default", [X, (0,)], {}, "1 dims for 2 axes; expected one each"),
        ("aten.select.int", [X, 0, 4], {}, "index 4 of an axis with 4 elements"),
        ("aten.slice.Tensor", [X, 0, 0, 2, 0], {}, "step 0; expected 1 or more"),
        ("aten.expand.default", [X, (3,)], {}, "sizes (3) for 2 axes"),
        ("aten.cat.default", [()], {}, "nothing to join"),
        ("aten.silu.default", [Y], {}, "operands of i64; expected a float"),
        ("aten.gelu.default", [X], {"approximate": "fast"}, "approximation 'fast'"),
        ("aten.relu_.default", [X], {}, "changes its operand in place"),
        ("aten.embedding.default", [X, X], {}, "an index of type f32; expected integers"),
        ("aten.native_layer_norm.default", [X, (5,), None, None, 1e-5], {}, "expected (3)"),
        ("aten.constant_pad_nd.default", [X, (1,)], {}, "1 paddings for 2 axes"),
        ("aten.full.default", [(2**70,), 1], {}, "does not fit in 64 bits"),
        ("aten.mse_loss_backward.default", [Y, Y, Y, 1], {}, "a loss of type i64"),
        ("aten.huber_loss.default", [X, X, 7], {}, "reduction 7; expected 0 (none)"),
        ("aten.nll_loss_forward.default", [X, X, None, 1, 0], {}, "targets of f32 for f32"),
        ("aten.gelu_backward.default", [X, X], {"approximate": "fast"}, "approximation 'fast'"),
        (
            "aten.native_layer_norm_backward.default",
            [X, X, (3,), X, X, None, None, (True,)],
            {},
            "a mask of 1 results; expected 3",
        ),
        ("aten.avg_pool2d.default", [X, (2, 2)], {}, "a tensor of shape (4, 3); expected 3 axes"),
        ("aten.unfold.default", [X, 1, 5, 1], {}, "windows of 5 every 1 in 3 elements"),
        ("aten.unfold_backward.default", [X, (4, 9), 1, 2, 2], {}, "expected (4, 4, 2)"),
        ("aten.select_backward.default", [X, (4, 3), 0, 1], {}, "a gradient (4, 3); expected (3)"),
        ("aten.slice_backward.default", [X, (4, 3), 0, 0, 4, 0], {}, "step 0; expected 1 or more"),
        ("aten.upsample_nearest2d.default", [X, (4, 4)], {}, "2 sizes for an image (4, 3)"),
        ("aten.grid_sampler_2d.default", [X, X, 0, 0, True], {}, "for an image (4, 3)"),
        ("aten.max_unpool2d.default", [X, Y, (4, 4)], {}, "sizes (4, 4) for (4, 3)"),
        ("aten.reflection_pad1d_backward.default", [X, X, (1,)], {}, "1 paddings of shape (4, 3)"),
        (
            "aten.linspace.default",
            [0, float("inf"), 5],
            {"dtype": DType.I64},
            "a range of integers that ends at inf",
        ),
    ],
)
def test_malformed_arguments_are_refused(
    op: str, args: list[Arg], attrs: dict[str, Arg], message: str
) -> None:
    inputs = [tensor(4, 3), tensor(4, 3, dtype=DType.I64)]
    text = refusal(one_node_graph(op, inputs, args, tensor(4, 3), **attrs))
    assert text.startswith(f"node 0 ({op}): ")
    assert message in text


def test_an_operator_that_decomposes_but_has_no_result_is_refused() -> None:
    node = Node("aten.relu.default", (X,), (), (), ())
    graph = Graph("aten", (), (Input(0, tensor()),), (node,), (X,), (tensor(),))
    assert "0 results; expected 1" in refusal(graph)


def test_a_prims_graph_is_not_imported() -> None:
    graph = one_node_graph("aten.neg.default", [tensor(2)], [X], tensor(2))
    message = graph_to_proto(dataclasses.replace(graph, dialect="prims"))
    with pytest.raises(InvalidGraphError, match="dialect 'prims'; expected 'aten'"):
        import_graph(message, max_nodes=10)


def test_an_unknown_operator_is_extern() -> None:
    graph = one_node_graph("mylib.magic.default", [tensor(2)], [3, X], tensor(5))
    lowered = decompose_to_prims(graph)
    (node,) = lowered.graph.nodes
    assert (node.op, node.attr("op"), node.attr("node")) == ("extern", "mylib.magic.default", 0)
    assert "a custom operator" in lowered.report[0].detail


STRANGE: tuple[Arg, ...] = (
    None,
    -1,
    0,
    2**62,
    -(2**63),
    99,
    2.5,
    float("nan"),
    float("inf"),
    True,
    "text",
    DType.F32,
    DType.BOOL,
    symbol("s0"),
    -symbol("s0"),
    (),
    (0, 0),
    (-5, 3),
    (Ref(0), None),
    ("text",),
    Ref(0),
)


def mutations(graph: Graph, source: random.Random) -> Graph:
    """The graph with a random part of its only node replaced."""
    (node,) = graph.nodes
    args, attrs, types = list(node.args), dict(node.attrs), list(node.types)
    match source.randrange(4):
        case 0 if args:
            args[source.randrange(len(args))] = source.choice(STRANGE)
        case 1 if args:
            args.pop()
        case 2 if attrs:
            attrs[source.choice(sorted(attrs))] = source.choice(STRANGE)
        case _:
            args.append(source.choice(STRANGE))
    if source.random() < 0.3:
        types[0] = TensorType(source.choice(list(DType)), types[0].shape, types[0].strides)
    if not graph.inputs and any(Ref(0) in (a, *(a if isinstance(a, tuple) else ())) for a in args):
        args = [a for a in args if not isinstance(a, Ref | tuple)]
    changed = dataclasses.replace(
        node, args=tuple(args), attrs=tuple(sorted(attrs.items())), types=tuple(types)
    )
    outputs = tuple(types) if len(graph.outputs) == len(types) else graph.output_types
    symbols = (SizeSymbol("s0", 2, None, 6),)
    return dataclasses.replace(graph, nodes=(changed,), output_types=outputs, symbols=symbols)


def test_no_mutation_of_a_node_raises_anything_but_invalid_graph() -> None:
    source = random.Random(7)
    seen: dict[str, Any] = {}
    refused = accepted = 0
    for call in calls():
        if call.op in seen:
            continue
        graph = seen[call.op] = captured_graph(call)
        if len(graph.nodes) != 1:
            continue
        for _ in range(12):
            mutated = mutations(graph, source)
            try:
                check_client_graph(mutated)
                decompose_to_prims(mutated)
                accepted += 1
            except InvalidGraphError as error:
                assert str(error)
                refused += 1
    assert len(seen) > len(DECOMPOSED) * 0.9
    assert refused > 1000
    assert accepted > 100
