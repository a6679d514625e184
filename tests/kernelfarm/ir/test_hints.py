"""Hints of operations: their text, the rules of graphs and kernels, messages and keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.digest import kernel_digest, program_key
from kernelfarm.errors import InvalidGraphError, VerificationError
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.ir.check_graph import check_client_graph
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.hints import KernelHint, NodeHint, read_hints
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_graph, parse_kernel, print_graph, print_kernel
from kernelfarm.ir.verify import verify_kernel
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire import graph_from_proto, graph_to_proto
from kernelfarm.wire.kernel import kernel_from_proto, kernel_to_proto

_GRAPH = parse_graph(
    """graph aten 1
%0: f32[4]@[1] = input "x"
%1: f32[4]@[1] = aten.sin.default(%0)
%2: f32[4]@[1] = aten.cos.default(%1)
return %2: f32[4]@[1]
"""
)
_KERNEL = parse_kernel(
    """kernel copy
param in in0: f32[4]
param out out0: f32[4]
for d0 in 4
  %0: f32 = load in0[d0]
  store out0[d0] = %0
"""
)
_WARPS, _ASYNC = KernelHint("num_warps", 8), KernelHint("async")


def _graph(*hints: tuple[int, KernelHint]) -> Graph:
    return replace(_GRAPH, kernel_hints=tuple(NodeHint(node, hint) for node, hint in hints))


def _kernel(*hints: KernelHint) -> Kernel:
    return replace(_KERNEL, hints=hints)


def test_a_text_has_names_and_numbers() -> None:
    assert read_hints(" async, num_warps = 8") == (_ASYNC, _WARPS)
    assert [str(hint) for hint in (_ASYNC, _WARPS)] == ["async", "num_warps=8"]


@pytest.mark.parametrize(
    "text", ["", "num warps", "num_warps=-1", "num_warps=12345", "a=b", "a,,b"]
)
def test_a_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidGraphError, match="expected NAME or NAME=NUMBER"):
        read_hints(text)


def test_too_many_hints_are_refused() -> None:
    with pytest.raises(InvalidGraphError, match="more than 64 hints"):
        read_hints(",".join(f"h{n}" for n in range(65)))


def test_texts_and_messages_give_graphs_and_kernels_back() -> None:
    graph = _graph((0, _ASYNC), (0, _WARPS), (1, _WARPS))
    message = graph_pb2.Graph.FromString(graph_to_proto(graph).SerializeToString())
    assert graph_from_proto(message) == graph
    assert parse_graph(print_graph(graph)) == graph

    kernel = _kernel(_ASYNC, _WARPS)
    sent = loops_pb2.Kernel.FromString(kernel_to_proto(kernel).SerializeToString())
    assert kernel_from_proto(sent) == kernel
    assert parse_kernel(print_kernel(kernel)) == kernel


def test_hints_have_a_part_in_keys() -> None:
    graphs = [
        _graph(),
        _graph((0, _WARPS)),
        _graph((1, _WARPS)),
        _graph((0, KernelHint("num_warps", 4))),
        _graph((0, KernelHint("num_warps"))),
    ]
    assert len({program_key(graph, "cuda:sm_90a", ()) for graph in graphs}) == len(graphs)

    kernels = [_kernel(), _kernel(_WARPS), _kernel(_ASYNC), _kernel(_ASYNC, _WARPS)]
    assert len({kernel_digest(kernel) for kernel in kernels}) == len(kernels)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (_graph((2, _WARPS)), "1 hints of node 2.*one of 2 nodes"),
        (_graph((1, _WARPS), (0, _WARPS)), "sorted by node and name"),
        (_graph((0, _WARPS), (0, KernelHint("num_warps", 4))), "each once"),
        (_graph((0, KernelHint("a b"))), "expected a name"),
        (_graph((0, KernelHint("a" * 33))), "expected a name"),
        (_graph((0, KernelHint("a", 10000))), "from 0 to 9999"),
        (_graph(*((0, KernelHint(f"h{n:02}")) for n in range(65))), "65 hints of node 0"),
    ],
)
def test_a_graph_with_other_hints_is_refused(graph: Graph, message: str) -> None:
    with pytest.raises(InvalidGraphError, match=message):
        check_client_graph(graph)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (_kernel(_WARPS, _ASYNC), "in the order of their names"),
        (_kernel(_WARPS, _WARPS), "each once"),
        (_kernel(KernelHint("")), "expected a name"),
        (_kernel(*(KernelHint(f"h{n:02}") for n in range(65))), "at most 64"),
    ],
)
def test_a_kernel_with_other_hints_is_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_kernel(kernel)
