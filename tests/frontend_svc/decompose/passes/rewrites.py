"""Small Prims graphs, and passes over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from frontend_svc.decompose.passes.remove_dead_code import REMOVE_DEAD_CODE
from frontend_svc.decompose.rewriting import RewritePass
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Graph, Ref, TensorType
from kernelfarm.ir.interpret import numpy_dtype, run_graph
from tests.support.small_graphs import tensor

F32, I64 = DType.F32, DType.I64


def graph_of(build: Callable[..., int], *inputs: TensorType) -> Graph:
    """A Prims graph whose output is the value that `build(builder, *inputs)` returns."""
    builder = GraphBuilder()
    values = [builder.add_input(kind) for kind in inputs]
    result = build(builder, *values)
    kind = builder.type_of(result)
    return builder.build([Ref(result)], [tensor(*kind.shape, dtype=kind.dtype)])


def applied(graph: Graph, *passes: RewritePass) -> Graph:
    """The graph after these passes and the removal of dead code."""
    for step in (*passes, REMOVE_DEAD_CODE):
        graph = step.rewrite(graph, graph).graph
    return graph


def ops(graph: Graph) -> list[str]:
    """The prims of a graph in order."""
    return [node.op for node in graph.nodes]


def assert_same_meaning(before: Graph, after: Graph) -> None:
    """Asserts that two graphs compute the same from random inputs."""
    values = _inputs_for(before)
    np.testing.assert_array_equal(run_graph(after, values)[0], run_graph(before, values)[0])


def full(b: GraphBuilder, value: Any, *extents: int, dtype: DType = F32) -> int:
    """One number in a shape."""
    shape = tuple(as_expr(extent) for extent in extents)
    return b.add("full", dtype=dtype, shape=shape, value=value)


def iota(b: GraphBuilder, length: int) -> int:
    """0, 1, 2, ... as i64."""
    return b.add("iota", dtype=I64, length=as_expr(length))


def _inputs_for(graph: Graph) -> list[Any]:
    source = np.random.default_rng(0)
    found = []
    for entry in graph.inputs:
        assert isinstance(entry.kind, TensorType)
        extents = [extent.as_int() for extent in entry.kind.shape]
        found.append((source.normal(size=extents) * 4).astype(numpy_dtype(entry.kind.dtype)))
    return found
