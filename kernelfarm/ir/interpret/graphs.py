"""The meaning of a Prims graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import (
    Arg,
    Constant,
    Graph,
    Input,
    Node,
    Ref,
    seed_index,
    seed_nodes,
    uses_of,
)
from kernelfarm.ir.interpret.arrays import Array, numpy_dtype
from kernelfarm.ir.interpret.prim_meanings import MEANINGS
from kernelfarm.ir.interpret.scalar_ops import compute
from kernelfarm.ir.interpret.sizes import Value, sizes_of_inputs
from kernelfarm.ir.prims import SCALAR_OPS


@dataclass(frozen=True, slots=True)
class ExternSite:
    """A captured node that the framework runs, by its number and operator."""

    node: int
    op: str


RunExtern = Callable[[ExternSite, list[Array]], Sequence[Array | None]]
"""Runs a captured node on arrays; gives its results in order, None for unused ones."""


def run_graph(
    graph: Graph,
    inputs: Sequence[Value],
    run_extern: RunExtern | None = None,
    seeds: Sequence[int] = (),
) -> list[Array | int | None]:
    """The outputs of a graph of the `prims` dialect.

    Shapes:
        inputs: one array for each tensor input, one integer for each symbolic integer, none for
            constants.
        seeds: one for each `seed` node, by ascending index.

    Raises:
        IndexError: an index operand is outside its extent.
        VerificationError: inputs or computed shapes contradict the graph, the graph has an extern
            node but there is no `run_extern`, or seeds are missing.
    """
    sizes = sizes_of_inputs(graph, inputs)
    values = _bound_inputs(graph, inputs)
    drawn = _drawn_seeds(graph, seeds)
    for index, node in enumerate(graph.nodes):
        operands = [values[value] for value in uses_of(node)]
        if node.op == "seed":
            values[node.results[0]] = drawn[node.results[0]]
            continue
        results = _run_node(node, operands, sizes, run_extern)
        for value, tensor, result in zip(node.results, node.types, results, strict=True):
            if result is None:
                continue
            shape = tuple(extent.evaluate(sizes) for extent in tensor.shape)
            if result.shape != shape or result.dtype != numpy_dtype(tensor.dtype):
                raise VerificationError(
                    f"node {index} ({node.op}) gives {result.dtype}{list(result.shape)};"
                    f" expected {tensor.dtype.value}{list(shape)}"
                )
            values[value] = result
    return [_output(output, values, sizes) for output in graph.outputs]


def _drawn_seeds(graph: Graph, seeds: Sequence[int]) -> dict[int, Array]:
    nodes = sorted(seed_nodes(graph), key=seed_index)
    if len(nodes) > len(seeds):
        raise VerificationError(f"{len(seeds)} seeds; expected {len(nodes)}")
    drawn = zip(nodes, seeds, strict=False)
    return {node.results[0]: np.array(seed, np.int64) for node, seed in drawn}


def constant_array(constant: Constant) -> Array:
    """A constant's elements."""
    shape = [extent.as_int() for extent in constant.type.shape]
    return np.frombuffer(constant.data, numpy_dtype(constant.type.dtype)).reshape(shape)


def _bound_inputs(graph: Graph, inputs: Sequence[Value]) -> dict[int, Array]:
    values: dict[int, Array] = {}
    rest = iter(inputs)
    for source in graph.inputs:
        if isinstance(source.kind, Constant):
            values[source.value] = constant_array(source.kind)
            continue
        value = next(rest)
        if not isinstance(source.kind, str):
            values[source.value] = _checked_input(source, value)
    return values


def _checked_input(source: Input, value: Value) -> Array:
    array = np.asarray(value)
    if not isinstance(source.kind, str) and not isinstance(source.kind, Constant):
        expected = numpy_dtype(source.kind.dtype)
        if array.dtype != expected:
            raise VerificationError(f"input {source.value} is {array.dtype}; expected {expected}")
    return array


def _run_node(
    node: Node, operands: list[Array], sizes: dict[str, int], run_extern: RunExtern | None
) -> Sequence[Array | None]:
    if node.op in SCALAR_OPS:
        return [compute(node.op, operands, node.types[0].dtype)]
    if node.op != "extern":
        return [MEANINGS[node.op](node, operands, sizes)]
    site = ExternSite(cast(int, node.attr("node")), cast(str, node.attr("op")))
    if run_extern is None:
        raise VerificationError(f"extern node {site.node} ({site.op}) needs run_extern")
    return run_extern(site, operands)


def _output(output: Arg, values: dict[int, Array], sizes: dict[str, int]) -> Array | int | None:
    if isinstance(output, Ref):
        return values[output.value]
    if isinstance(output, Expr):
        return output.evaluate(sizes)
    if output is None or isinstance(output, int):
        return output
    raise VerificationError(f"output {output!r}; expected a tensor, an integer or None")
