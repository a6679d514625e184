"""Requests whose work takes long: it must not delay other callers, and must end on time."""

from __future__ import annotations

from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import (
    Graph,
    Input,
    Node,
    Ref,
    SizeSymbol,
)
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.wire import graph_to_proto
from tests.support.small_graphs import CPU, tensor


def cat_graph(inputs: int, columns: int = 4) -> Graph:
    """`relu(cat(inputs))` with a size symbol for each input: 800 bytes that once took hours."""
    rows = [symbol(f"s{index}") for index in range(inputs)]
    joined = tensor(sum(rows[1:], rows[0]), columns)
    cat = Node("aten.cat.default", (tuple(map(Ref, range(inputs))), 0), (), (inputs,), (joined,))
    relu = Node("aten.relu.default", (Ref(inputs),), (), (inputs + 1,), (joined,))
    return Graph(
        dialect="aten",
        symbols=tuple(SizeSymbol(f"s{index}", 1, None) for index in range(inputs)),
        inputs=tuple(Input(i, tensor(extent, columns), f"x{i}") for i, extent in enumerate(rows)),
        nodes=(cat, relu),
        outputs=(Ref(inputs + 1),),
        output_types=(joined,),
    )


def long_graph(nodes: int, columns: int = 4) -> Graph:
    """A chain of cheap operators: legitimate work of seconds."""
    matrix = tensor(4, columns)
    chain = tuple(
        Node("aten.add.Tensor", (Ref(index), 1 + index), (), (index + 1,), (matrix,))
        for index in range(nodes)
    )
    return Graph("aten", (), (Input(0, matrix, "a"),), chain, (Ref(nodes),), (matrix,))


def request_of(graph: Graph) -> api.CompileRequest:
    """A request to compile a graph."""
    return api.CompileRequest(graph=graph_to_proto(graph), targets=[CPU])
