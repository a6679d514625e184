"""Lowers every materialized value to a loop nest of its own."""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Axis, Reduce
from kernelfarm.ir.simplify import Bounds, Range
from kernelfarm.ir.symbolic import ONE, ZERO, Expr, symbol
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import REDUCE_OPS, int_attr, ints_attr, operands
from optimizer_svc.analysis.index_maps import Index
from optimizer_svc.lowering.lower_value import ValueLowering
from optimizer_svc.lowering.nest_body import NestBody
from optimizer_svc.nest import Nest
from optimizer_svc.passes.choose_materialized import Materialization

_IDENTITIES: dict[str, float] = {"sum": 0, "prod": 1, "any": 0, "all": 1}


def lower_nests(chosen: Materialization) -> tuple[Nest, ...]:
    """One nest for each member, in graph order; values without elements have none."""
    facts = chosen.facts
    wanted = (v for v in chosen.members if not is_empty(facts.types[v].shape))
    return tuple(_lowered(chosen, value) for value in wanted)


def _lowered(chosen: Materialization, value: int) -> Nest:
    node = chosen.facts.producers[value]
    storage = chosen.storages[value]
    axes: list[Axis] = []
    index: list[Expr] = []
    for extent, stride in zip(storage.shape, storage.strides, strict=True):
        if extent is ONE or stride is ZERO:  # elements that share their place are stored once
            index.append(ZERO)
            continue
        axis = Axis(f"x{len(axes)}", extent)
        axes.append(axis)
        index.append(symbol(axis.name))
    reduction = _reduction_axes(chosen, node)
    lowering = ValueLowering(
        chosen.facts, chosen.storages, _bounds(chosen.facts.bounds, (*axes, *reduction))
    )
    result = _result(lowering, node, tuple(index), reduction)
    return Nest(
        value=value,
        dtype=node.types[0].dtype,
        axes=tuple(axes),
        index=tuple(index),
        reduction=reduction,
        body=tuple(lowering.body.statements),
        result=result,
        origins=tuple(lowering.origins),
    )


def _bounds(sizes: Bounds, axes: tuple[Axis, ...]) -> Bounds:
    ranges = dict(sizes.ranges)
    for axis in axes:
        ranges[axis.name] = Range(ZERO, axis.extent - 1)
    return Bounds(ranges)


def _reduction_axes(chosen: Materialization, node: Node) -> tuple[Axis, ...]:
    if node.op == "cumsum":
        extent = node.types[0].shape[int_attr(node, "dim")]
        return () if extent is ONE else (Axis("r0", extent),)
    if node.op not in REDUCE_OPS:
        return ()
    shape = chosen.facts.types[operands(node)[0]].shape
    extents = [shape[dim] for dim in ints_attr(node, "dims")]
    if is_empty(extents):
        return ()
    kept = [extent for extent in extents if extent is not ONE]
    return tuple(Axis(f"r{k}", extent) for k, extent in enumerate(kept))


def _result(lowering: ValueLowering, node: Node, index: Index, reduction: tuple[Axis, ...]) -> int:
    if node.op == "cumsum":
        lowering.note(node)
        return _scan(lowering, node, index, reduction)
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
    """A running sum as, for each element, the sum of what lies before it."""
    body, dim = lowering.body, int_attr(node, "dim")
    if not reduction:
        return lowering.value(operands(node)[0], index, lowering.everywhere())
    (axis,) = reduction
    at = (*index[:dim], symbol(axis.name), *index[dim + 1 :])
    element = lowering.value(operands(node)[0], at, lowering.everywhere())
    element = body.convert(element, body.dtypes[element].compute_dtype)
    wide = body.dtypes[element]
    here, last = body.index_value(symbol(axis.name)), body.index_value(index[dim])
    is_before = body.compute("le", (here, last), DType.BOOL)
    zero = body.literal(wide, 0)
    part = body.compute("where", (is_before, element, zero), wide)
    return body.convert(body.add(Reduce("sum", part, wide), wide), node.types[0].dtype)
