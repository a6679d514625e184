"""What travels of a traced module."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from examples.real_inputs import WHOLE_GRAPHS, f, g, h
from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.operator_names import wire_name
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.check_graph import check_client_graph
from kernelfarm.ir.graph_ir import Constant, Ref, TensorType, uses_of
from kernelfarm.wire import graph_from_proto, graph_to_proto
from tests.support.traced_graphs import traced, traced_one


def ops(captured) -> list[str]:
    return [node.op for node in captured.graph.nodes]


@pytest.mark.parametrize("name", list(WHOLE_GRAPHS))
def test_real_inputs_travel_and_arrive_unchanged(name):
    source = WHOLE_GRAPHS[name]()
    with torch.no_grad():
        captured = traced_one(source.model, *source.args)
    check_client_graph(captured.graph)
    assert graph_from_proto(graph_to_proto(captured.graph)) == captured.graph
    assert len(captured.nodes) == len(captured.graph.nodes)
    for node, own in zip(captured.graph.nodes, captured.nodes, strict=True):
        assert node.op == wire_name(own.target)


def test_h_is_seven_operators_with_shapes_strides_and_locations():
    captured = traced_one(h, torch.randn(4, 6), torch.randn(4, 6))
    assert ops(captured) == [
        "aten.ceil.default",
        "aten.floor.default",
        "aten.add.Tensor",
        "aten.sum.dim_IntList",
        "aten._softmax.default",
        "aten.mul.Tensor",
        "aten.pow.Tensor_Scalar",
    ]
    graph = captured.graph
    assert str(graph.nodes[2].types[0]) == "TensorType(dtype=f32, shape=(4, 6), strides=(6, 1))"
    assert graph.nodes[4].args == (Ref(5), -1, False)
    where = graph.locations[graph.nodes[0].location - 1]
    assert where.startswith("real_inputs.py:") and "a.ceil() + b.floor()" in where


@pytest.mark.parametrize("shift", [30.0, -30.0])
def test_both_sides_of_the_branch_of_f_are_graphs_of_their_own(shift):
    with torch._dynamo.config.patch(use_numpy_random_stream=True):
        graphs = traced(f, torch.randn(5) + shift)
    wave = "aten.sin.default" if shift > 0 else "aten.cos.default"
    assert [ops(c) for c in graphs] == [
        ["aten.mul.Tensor"],
        ["aten.add.Tensor", "aten.sum.default", "aten.gt.Scalar"],
        [wave, wave],
    ]


@pytest.mark.parametrize(("shift", "factor"), [(30.0, 2), (-30.0, -1.0)])
def test_both_sides_of_the_branch_of_g_are_graphs_of_their_own(shift, factor):
    graphs = traced(g, torch.randn(5) + shift, torch.randn(5))
    assert [len(c.graph.nodes) for c in graphs] == [4, 1]
    assert graphs[1].graph.nodes[0].args == (Ref(0), factor)


def test_getitem_is_folded_into_results():
    captured = traced_one(lambda x: x.split(2)[1] + 1, torch.randn(6, 3))
    split, add = captured.graph.nodes
    assert split.op == "aten.split.Tensor"
    assert len(split.results) == len(split.types) == 3
    assert add.args[0] == Ref(split.results[1])


def test_unused_results_get_a_placeholder_type():
    def loss_of(x):
        return torch.ops.aten.native_layer_norm(x, [6], None, None, 1e-5)[0]

    (norm,) = traced_one(loss_of, torch.randn(4, 6)).graph.nodes
    assert norm.args[1:4] == ((6,), None, None)
    assert [t.rank for t in norm.types] == [2, 0, 0]


def test_a_dynamic_dimension_travels_as_a_symbol_with_its_range():
    x = torch.randn(7, 3)
    torch._dynamo.mark_dynamic(x, 0, min=4, max=100)
    captured = traced_one(lambda x: (x + x.shape[0], torch.arange(x.shape[0] * 2)), x)
    (size,) = captured.graph.symbols
    assert (size.lower, size.upper, size.hint) == (4, 100, 7)
    (tensor,) = (s.kind for s in captured.graph.inputs if isinstance(s.kind, TensorType))
    assert tensor.shape[0] is symbol(size.name)
    arange = next(n for n in captured.graph.nodes if n.op.startswith("aten.arange"))
    assert arange.args == (symbol(size.name) * 2,)
    assert all(value not in {0} for n in captured.graph.nodes for value in uses_of(n))


def test_small_constants_travel_by_content_and_large_ones_are_inputs():
    small = torch.tensor([1.5, 2.5])
    large = torch.arange(20_000, dtype=torch.float32)

    captured = capture(make_fx(lambda x: x[:2] + small + large.sum())(torch.randn(4)))
    constants = [s.kind for s in captured.graph.inputs if isinstance(s.kind, Constant)]
    assert [c.data for c in constants] == [small.numpy().tobytes()]
    assert constants[0].sha256 == hashlib.sha256(small.numpy().tobytes()).digest()
    held = [s for s in captured.sources if isinstance(s, torch.Tensor) and s.numel() == 20_000]
    assert len(held) == 1
    assert isinstance(captured.graph.inputs[-1].kind, Constant)


def test_the_device_does_not_travel():
    captured = traced_one(lambda x: torch.zeros(3, device=x.device) + x, torch.randn(3))
    names = {name for node in captured.graph.nodes for name, _ in node.attrs}
    assert names.isdisjoint({"device", "layout", "pin_memory"})


def test_dtypes_and_memory_formats_travel_by_name():
    def cast(x):
        return x.to(torch.bfloat16).clone(memory_format=torch.contiguous_format)

    captured = traced_one(cast, torch.randn(3, 4).t())
    attrs = [node.attrs for node in captured.graph.nodes]
    assert (("dtype", DType.BF16),) in attrs
    assert (("memory_format", "contiguous_format"),) in attrs


def test_strides_of_inputs_and_outputs_are_those_of_the_trace():
    captured = traced_one(lambda x: x + 1, torch.randn(3, 4).t())
    assert [int(s.constant) for s in captured.graph.inputs[0].kind.strides] == [1, 4]
    assert [int(s.constant) for s in captured.graph.output_types[0].strides] == [1, 4]


def refusal(function, *args) -> Exception:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        traced(function, *args)
    return caught.value.inner_exception


def test_complex_numbers_are_sent_by_their_type():
    captured = traced_one(lambda x: torch.fft.fft(x).abs(), torch.randn(8))
    assert DType.C64 in [tensor.dtype for node in captured.graph.nodes for tensor in node.types]


def test_sparse_tensors_are_refused_by_node_and_layout():
    module = make_fx(lambda x: x.to_sparse(), tracing_mode="fake")(torch.randn(8))
    with pytest.raises(UnsupportedGraphError, match=r"_to_sparse.*sparse_coo"):
        capture(module)


def test_sizes_that_depend_on_data_are_refused():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        error = refusal(lambda x: torch.nonzero(x) + 1, torch.ones(8))
    assert isinstance(error, InvalidGraphError) and "depends on data" in str(error)


def test_random_generators_are_refused_or_sent_without_state():
    captured = traced_one(lambda x: x + torch.rand(4), torch.randn(4))
    assert "aten.rand.default" in ops(captured)


def test_higher_order_operators_are_refused():
    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    error = refusal(branches, torch.randn(4))
    assert isinstance(error, UnsupportedGraphError) and "overload" in str(error)
