"""Lowers one materialized value to a loop nest."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Axis, Reduce, Scan, Sort, StoreMode
from kernelfarm.ir.scalar_types import scan_result_dtype
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import (
    REDUCE_OPS,
    SCAN_OPS,
    SORT_OPS,
    int_attr,
    ints_attr,
    operands,
)
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.nest import Nest
from optimizer_svc.lowering.lower_value import Selection, ValueLowering
from optimizer_svc.lowering.nest_body import NestBody

SCANNED = "r0"
"""The axis of a nest along which a scan or sort runs."""
_RUNNING = SCAN_OPS | SORT_OPS
_IDENTITIES: dict[str, float] = {"sum": 0, "prod": 1, "any": 0, "all": 1}


@dataclass(frozen=True, slots=True)
class LoweredNest:
    """The nest of a value, the cats of many pieces that it selects from, and the ranges there."""

    nest: Nest
    selections: tuple[Selection, ...]
    bounds: Bounds


def lowered(chosen: Materialization, value: int) -> LoweredNest:
    """The nest that computes and stores a member."""
    node = chosen.facts.producers[value]
    if node.op == "scatter":
        return _scattered(chosen, node)
    axes, index = _domain(chosen, value)
    reduction = _reduction_axes(chosen, node)
    bounds = _bounds(chosen.facts.bounds, (*axes, *reduction))
    lowering = ValueLowering(chosen.facts, chosen.storages, bounds, chosen.unrounded)
    result = _result(lowering, node, index, reduction)
    result = lowering.body.convert(result, node.types[0].dtype)
    nest = Nest(
        value=value,
        dtype=node.types[0].dtype,
        axes=axes,
        index=_stored_index(chosen, value, index),
        reduction=reduction,
        body=tuple(lowering.body.statements),
        result=result,
        origins=tuple(lowering.origins),
    )
    return LoweredNest(nest, tuple(lowering.selections), lowering.bounds)


def _domain(chosen: Materialization, value: int) -> tuple[tuple[Axis, ...], Index]:
    """The axes of a value's nest, and the index over them in the value's own shape."""
    node, strides = chosen.facts.producers[value], chosen.storages[value].strides
    scanned = int_attr(node, "dim") if node.op in _RUNNING else None
    axes: list[Axis] = []
    index: list[Expr] = []
    for number, extent in enumerate(chosen.facts.types[value].shape):
        if number == scanned and extent is not ONE:
            index.append(symbol(SCANNED))
            continue
        if extent is ONE or strides[number] is ZERO:  # elements that share memory need one store
            index.append(ZERO)
            continue
        axis = Axis(f"x{len(axes)}", extent)
        axes.append(axis)
        index.append(symbol(axis.name))
    return tuple(axes), tuple(index)


def _stored_index(chosen: Materialization, value: int, index: Index) -> Index:
    """The index at which an element is stored; a slice is stored inside another value."""
    stored_slice = chosen.slices.get(value)
    if stored_slice is None:
        return index
    return (
        *index[: stored_slice.dim],
        index[stored_slice.dim] + stored_slice.start,
        *index[stored_slice.dim + 1 :],
    )


def _bounds(sizes: Bounds, axes: tuple[Axis, ...]) -> Bounds:
    ranges = dict(sizes.ranges)
    for axis in axes:
        ranges[axis.name] = Range(ZERO, axis.extent - 1)
    return Bounds(ranges)


def _reduction_axes(chosen: Materialization, node: Node) -> tuple[Axis, ...]:
    if node.op in _RUNNING:
        extent = node.types[0].shape[int_attr(node, "dim")]
        return () if extent is ONE else (Axis(SCANNED, extent),)
    if node.op not in REDUCE_OPS:
        return ()
    shape = chosen.facts.types[operands(node)[0]].shape
    extents = [shape[dim] for dim in ints_attr(node, "dims")]
    if is_empty(extents):
        return ()
    kept = [extent for extent in extents if extent is not ONE]
    return tuple(Axis(f"r{k}", extent) for k, extent in enumerate(kept))


def _result(lowering: ValueLowering, node: Node, index: Index, reduction: tuple[Axis, ...]) -> int:
    if node.op in SCAN_OPS:
        lowering.note(node)
        return _scan(lowering, node, index, reduction)
    if node.op in SORT_OPS:
        lowering.note(node)
        return _sort(lowering, node, index, reduction)
    if node.op in REDUCE_OPS:
        lowering.note(node)
        return _reduce(lowering, node, index, reduction)
    return lowering.definition(node.results[0], index, lowering.everywhere())


def _reduce(lowering: ValueLowering, node: Node, index: Index, reduction: tuple[Axis, ...]) -> int:
    body, dtype = lowering.body, node.types[0].dtype
    (operand,) = operands(node)
    tensor = lowering.facts.types[operand]
    dims = ints_attr(node, "dims")
    if is_empty(tensor.shape[dim] for dim in dims):
        return _empty_reduction(body, node)
    kept, reduced = iter(index), iter(reduction)
    at: list[Expr] = []
    for axis, extent in enumerate(tensor.shape):
        if axis not in dims:
            at.append(next(kept))
        else:
            at.append(ZERO if extent is ONE else symbol(next(reduced).name))
    element = lowering.value(operand, tuple(at), lowering.everywhere())
    if not reduction:
        return body.literal(dtype, 0) if node.op.startswith("arg") else element
    wide = body.dtypes[element].compute_dtype
    element = body.convert(element, wide)
    result_dtype = dtype if node.op.startswith("arg") else wide
    return body.convert(body.add(Reduce(node.op, element, result_dtype), result_dtype), dtype)


def _empty_reduction(body: NestBody, node: Node) -> int:
    identity = _IDENTITIES.get(node.op)
    if identity is None:
        raise InternalError(f"{node.op} over no elements has no value")
    return body.literal(node.types[0].dtype, identity)


def _scan(lowering: ValueLowering, node: Node, index: Index, reduction: tuple[Axis, ...]) -> int:
    body, dtype = lowering.body, node.types[0].dtype
    element = lowering.value(operands(node)[0], index, lowering.everywhere())
    if not reduction:
        return body.literal(dtype, 0) if node.op.endswith("_index") else element
    wide = body.dtypes[element].compute_dtype
    result = scan_result_dtype(node.op, wide)
    scanned = body.add(Scan(node.op, body.convert(element, wide), result), result)
    return body.convert(scanned, dtype)


def _sort(lowering: ValueLowering, node: Node, index: Index, reduction: tuple[Axis, ...]) -> int:
    body = lowering.body
    if not reduction:
        return body.literal(DType.I64, 0)
    element = lowering.value(operands(node)[0], index, lowering.everywhere())
    wide = body.convert(element, body.dtypes[element].compute_dtype)
    return body.add(Sort(wide, bool(node.attr("descending"))), DType.I64)


def _scattered(chosen: Materialization, node: Node) -> LoweredNest:
    """The nest of a scatter's updates; the base is in the value's memory already."""
    updates = operands(node)[-1]
    facts, value = chosen.facts, node.results[0]
    axes: list[Axis] = []
    at: list[Expr] = []
    for extent in facts.types[updates].shape:
        if extent is ONE:
            at.append(ZERO)
            continue
        axis = Axis(f"x{len(axes)}", extent)
        axes.append(axis)
        at.append(symbol(axis.name))
    bounds = _bounds(facts.bounds, tuple(axes))
    lowering = ValueLowering(facts, chosen.storages, bounds, chosen.unrounded)
    lowering.note(node)
    index = lowering.scattered_index(node, tuple(at))
    result = lowering.value(updates, tuple(at), lowering.everywhere())
    result = lowering.body.convert(result, node.types[0].dtype)
    nest = Nest(
        value=value,
        dtype=node.types[0].dtype,
        axes=tuple(axes),
        index=index,
        reduction=(),
        body=tuple(lowering.body.statements),
        result=result,
        origins=tuple(lowering.origins),
        scatter=StoreMode(node.attr("mode")),
    )
    return LoweredNest(nest, tuple(lowering.selections), lowering.bounds)
