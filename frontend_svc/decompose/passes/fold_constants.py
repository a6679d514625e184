"""Evaluates values that depend on no input: uniform ones become `full`, series become `iota`.

Other constant values are not folded: only clients can send constants, so a program cannot contain
new ones. Except for scans, they are cheap inside a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from frontend_svc.decompose.report import NodeOutcome, PassNote
from frontend_svc.decompose.rewriting import RewritePass, RewriteResult, rebuild
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Constant, Graph, Node, Ref, TensorType
from kernelfarm.ir.interpret import numpy_dtype, run_graph
from kernelfarm.ir.interpret.scalar_ops import compute
from kernelfarm.ir.prims import CLIENT_OPS, PRIMS, SCALAR_OPS, PrimKind

Array = npt.NDArray[Any]

_LARGEST_VALUE_BYTES = 64 * 1024
_INT64_MAX = 2**63 - 1
_LARGEST_WORK_BYTES = 16 * 1024 * 1024
"""The most that one request may evaluate, so that no graph occupies the service for long."""


def fold_constants(graph: Graph, captured: Graph) -> RewriteResult:
    """The graph with constant values in their simplest form."""
    # Overflow to infinity is no error, as in kernels.
    with np.errstate(all="ignore"):
        uniform = _uniform_values(graph)
        arrays = _evaluated(graph)
    notes: list[PassNote] = []

    def rule(builder: GraphBuilder, node: Node, operands: tuple[int, ...]) -> int | None:
        if node.op in ("full", "iota") or node.op in CLIENT_OPS:
            return None
        value = node.results[0]
        scalar = uniform.get(value)
        array = arrays.get(value)
        if scalar is None and array is not None and _is_uniform(array):
            scalar = array.reshape(-1)[0]
        if scalar is not None:
            notes.append(PassNote(node.origins, NodeOutcome.FOLDED, f"every element is {scalar}"))
            return _full(builder, node.types[0], scalar)
        series = None if array is None else _series_of(array)
        if series is None or PRIMS[node.op].kind is PrimKind.VIEW:
            return None
        axis, start, step = series
        notes.append(PassNote(node.origins, NodeOutcome.FOLDED, f"counts from {start} by {step}"))
        return _iota(builder, node.types[0], axis, start, step)

    if not uniform.keys() - _fulls(graph) and not arrays:
        return RewriteResult(graph)
    return RewriteResult(rebuild(graph, rule), tuple(notes))


def _uniform_values(graph: Graph) -> dict[int, Array]:
    """Values whose elements are all one number, for any sizes."""
    found: dict[int, Array] = {}
    for node in graph.nodes:
        value = _uniform_value(node, found)
        if value is not None:
            found[node.results[0]] = value
    return found


def _uniform_value(node: Node, found: Mapping[int, Array]) -> Array | None:
    if node.op == "full":
        number = node.attr("value")
        is_size = isinstance(number, Expr)
        return None if is_size else np.array(number).astype(numpy_dtype(node.types[0].dtype))
    operands = [found.get(arg.value) for arg in node.args if isinstance(arg, Ref)]
    known = [operand for operand in operands if operand is not None]
    if not known or len(known) != len(node.args):
        return None
    if node.op in SCALAR_OPS:
        return compute(node.op, known, node.types[0].dtype)
    is_same = all(_is_same(other, known[0]) for other in known[1:])
    keeps_elements = node.op == "cat" or PRIMS[node.op].kind is PrimKind.VIEW
    return known[0] if keeps_elements and is_same else None


def _evaluated(graph: Graph) -> dict[int, Array]:
    """Small constant values by id; empty if only numbers and ranges are constant."""
    nodes, is_worthwhile = _small_constant_nodes(graph)
    if not is_worthwhile:
        return {}
    needed = [node.results[0] for node in nodes]
    inputs = tuple(source for source in graph.inputs if isinstance(source.kind, Constant))
    part = Graph(
        dialect=graph.dialect,
        symbols=(),
        inputs=inputs,
        nodes=tuple(nodes),
        outputs=tuple(Ref(value) for value in needed),
        output_types=tuple(node.types[0] for node in nodes),
    )
    try:
        results = run_graph(part, [])
    except IndexError:
        # An index is out of range: the model reports that error when it runs.
        return {}
    return {
        value: result
        for value, result in zip(needed, results, strict=True)
        if isinstance(result, np.ndarray)
    }


def _small_constant_nodes(graph: Graph) -> tuple[list[Node], bool]:
    known = {source.value for source in graph.inputs if isinstance(source.kind, Constant)}
    nodes: list[Node] = []
    work_bytes = 0
    is_worthwhile = False
    for node in graph.nodes:
        if node.op in CLIENT_OPS or isinstance(node.attr("value"), Expr):
            continue
        if not all(isinstance(arg, Ref) and arg.value in known for arg in node.args):
            continue
        size_bytes = _size_bytes(node.types[0])
        if size_bytes is None or work_bytes + size_bytes > _LARGEST_WORK_BYTES:
            continue
        work_bytes += size_bytes
        known.add(node.results[0])
        nodes.append(node)
        is_worthwhile = is_worthwhile or PRIMS[node.op].kind is not PrimKind.CREATE
    return nodes, is_worthwhile


def _size_bytes(tensor: TensorType) -> int | None:
    """Bytes of a small tensor of known shape; None for any other."""
    if not all(extent.is_constant for extent in tensor.shape):
        return None
    elems = math.prod(extent.constant for extent in tensor.shape)
    size_bytes = elems * tensor.dtype.itemsize_bytes
    return size_bytes if size_bytes <= _LARGEST_VALUE_BYTES else None


def _fulls(graph: Graph) -> set[int]:
    return {node.results[0] for node in graph.nodes if node.op == "full"}


def _is_same(left: Array, right: Array) -> bool:
    """True if equal to the bit: 0.0 and -0.0 differ, a NaN equals itself."""
    return left.tobytes() == right.tobytes()


def _is_uniform(array: Array) -> bool:
    if not array.size:
        return False
    flat = np.ascontiguousarray(array).reshape(-1)
    size_bytes = flat.dtype.itemsize
    return flat.tobytes() == flat[:1].tobytes() * (flat.nbytes // size_bytes)


def _series_of(array: Array) -> tuple[int, int, int] | None:
    """(axis, start, step) of integers that form an arithmetic series along one axis; else None."""
    if array.dtype.kind not in "iu" or array.size < 2:
        return None
    for axis, extent in enumerate(array.shape):
        if extent < 2:
            continue
        first = np.take(array, [0], axis=axis)
        second = np.take(array, [1], axis=axis)
        if not _is_uniform(first) or not _is_uniform(second):
            continue
        start, step = int(first.flat[0]), int(second.flat[0]) - int(first.flat[0])
        if max(abs(start), abs(start + step * extent)) >= _INT64_MAX:
            return None
        shape = [extent if k == axis else 1 for k in range(array.ndim)]
        expected = (start + step * np.arange(extent)).reshape(shape)
        return (axis, start, step) if bool((array == expected).all()) else None
    return None


def _full(builder: GraphBuilder, tensor: TensorType, scalar: Array) -> int:
    number: bool | int | float
    if tensor.dtype is DType.BOOL:
        number = bool(scalar)
    else:
        number = float(scalar) if tensor.dtype.is_float else int(scalar)
    return builder.add("full", dtype=tensor.dtype, shape=tensor.shape, value=number)


def _iota(builder: GraphBuilder, tensor: TensorType, axis: int, start: int, step: int) -> int:
    length = tensor.shape[axis]
    shape = (length,)
    value = builder.add("iota", dtype=tensor.dtype, length=as_expr(length))
    for op, number, neutral in (("mul", step, 1), ("add", start, 0)):
        if number != neutral:
            # Elements wrap around in their type, so a decreasing series of u8 has a positive step.
            wrapped = np.array(number).astype(numpy_dtype(tensor.dtype))
            other = _full(builder, TensorType(tensor.dtype, shape), wrapped)
            value = builder.add(op, value, other)
    if tensor.shape == shape:
        return value
    return builder.add("broadcast_in_dim", value, dims=(axis,), shape=tensor.shape)


FOLD_CONSTANTS = RewritePass("fold_constants", fold_constants)
