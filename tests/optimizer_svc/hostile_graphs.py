"""Small graphs that once took exponential work, and a process that a timeout kills."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, product_of, symbol
from kernelfarm.ir.graph_ir import (
    Graph,
    Input,
    Node,
    Ref,
    SizeSymbol,
    TensorType,
    contiguous_strides,
)

_TIMEOUT_S = 300.0
"""The work takes less than a second. Without its bounds it never ends."""


def tensor_of(*shape: Expr) -> TensorType:
    """A row-major f32 tensor."""
    return TensorType(DType.F32, shape, contiguous_strides(shape))


def sizes(count: int, *, hint: int | None = None) -> tuple[tuple[SizeSymbol, ...], list[Expr]]:
    """Size symbols of at least 2, and their expressions."""
    names = [f"s{number}" for number in range(count)]
    return tuple(SizeSymbol(n, 2, None, hint) for n in names), [symbol(n) for n in names]


def cat_of(count: int, dim: int = 0) -> Graph:
    """`relu(cat(inputs))` of inputs with dynamic sizes along the axis."""
    symbols, extents = sizes(count)
    width = as_expr(64)

    def shape(extent: Expr) -> tuple[Expr, Expr]:
        return (extent, width) if dim == 0 else (width, extent)

    inputs = tuple(Input(n, tensor_of(*shape(e))) for n, e in enumerate(extents))
    whole = tensor_of(*shape(sum(extents, ZERO)))
    operands = tuple(Ref(number) for number in range(count))
    nodes = (
        Node("aten.cat.default", (operands, dim), (), (count,), (whole,)),
        Node("aten.relu.default", (Ref(count),), (), (count + 1,), (whole,)),
    )
    return Graph("aten", symbols, inputs, nodes, (Ref(count + 1),), (whole,))


def product_of_extents(count: int) -> Graph:
    """`relu(x.flatten())` of a tensor with extents `s0 + 1`, `s1 + 1`, ..."""
    symbols, extents = sizes(count)
    given = TensorType(DType.F32, tuple(e + 1 for e in extents), None)
    inputs = (
        *(Input(number, size.name) for number, size in enumerate(symbols)),
        Input(count, given),
    )
    nodes = (Node("aten.relu.default", (Ref(count),), (), (count + 1,), (given,)),)
    return Graph("aten", symbols, inputs, nodes, (Ref(count + 1),), (given,))


def relaid(times: int) -> Graph:
    """A matrix of dynamic extents, many times transposed and reshaped to its old shape."""
    symbols, (a, b) = sizes(2)
    wide, tall = tensor_of(a, b), TensorType(DType.F32, (b, a), (ONE, b))
    nodes: list[Node] = []
    value = 0
    for _ in range(times):
        nodes += [
            Node("aten.permute.default", (Ref(value), (1, 0)), (), (value + 1,), (tall,)),
            Node("aten.reshape.default", (Ref(value + 1), (a, b)), (), (value + 2,), (wide,)),
        ]
        value += 2
    return Graph("aten", symbols, (Input(0, wide),), tuple(nodes), (Ref(value),), (wide,))


def numel(graph: Graph) -> Expr:
    """The number of elements of a graph's first output."""
    tensor = graph.output_types[0]
    assert tensor is not None
    return product_of(tensor.shape)


def outcome_in_time(work: Callable[..., str], *args: object) -> str:
    """The result of the work, which runs in a process of its own.

    Raises:
        TimeoutError: the work does not end. Its process is killed.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:  # leaving it kills the process
        return pool.apply_async(work, args).get(timeout=_TIMEOUT_S)
