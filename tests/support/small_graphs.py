"""Small captured graphs, built by hand, and requests to compile them."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import IntLike, as_expr
from kernelfarm.ir.graph_ir import Graph, Input, Node, Ref, TensorType, contiguous_strides
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.wire import graph_to_proto

CPU = "cpu:x86-64-v3"


def tensor(
    *shape: IntLike, dtype: DType = DType.F32, strides: Sequence[IntLike] | None = None
) -> TensorType:
    """A tensor type; contiguous without strides."""
    extents = tuple(as_expr(extent) for extent in shape)
    if strides is None:
        return TensorType(dtype, extents, contiguous_strides(extents))
    return TensorType(dtype, extents, tuple(as_expr(stride) for stride in strides))


def h_graph(rows: int = 64, columns: int = 128) -> Graph:
    """`(softmax(sum(ceil(a) + floor(b), -1)) * 10) ** 3`; other extents make another program."""
    matrix, vector = tensor(rows, columns), tensor(rows)
    steps = (
        ("aten.ceil.default", (Ref(0),), matrix),
        ("aten.floor.default", (Ref(1),), matrix),
        ("aten.add.Tensor", (Ref(2), Ref(3)), matrix),
        ("aten.sum.dim_IntList", (Ref(4), (-1,)), vector),
        ("aten._softmax.default", (Ref(5), -1, False), vector),
        ("aten.mul.Tensor", (Ref(6), 10), vector),
        ("aten.pow.Tensor_Scalar", (Ref(7), 3), vector),
    )
    nodes = tuple(
        Node(op, args, (), (2 + index,), (result,))
        for index, (op, args, result) in enumerate(steps)
    )
    return Graph(
        dialect="aten",
        symbols=(),
        inputs=(Input(0, matrix, "a"), Input(1, matrix, "b")),
        nodes=nodes,
        outputs=(Ref(8),),
        output_types=(vector,),
    )


def h_request(rows: int = 64, columns: int = 128, *targets: str) -> api.CompileRequest:
    """A request to compile `h` for these extents."""
    graph = graph_to_proto(h_graph(rows, columns))
    return api.CompileRequest(graph=graph, targets=targets or (CPU,))


def slow_request(links: int = 120) -> api.CompileRequest:
    """A request whose only kernel takes the CPU's code generator seconds: a chain of functions."""
    matrix = tensor(64, 128)
    functions = ("aten.sin.default", "aten.erf.default", "aten.tanh.default")
    nodes = tuple(
        Node(functions[link % 3], (Ref(link),), (), (link + 1,), (matrix,)) for link in range(links)
    )
    graph = Graph("aten", (), (Input(0, matrix, "a"),), nodes, (Ref(links),), (matrix,))
    return api.CompileRequest(graph=graph_to_proto(graph), targets=[CPU])
