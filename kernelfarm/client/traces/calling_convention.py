"""The calling convention of a traced graph: what AOT Autograd's wrappers do around it.

For inference they do little: they pass arguments unchanged, mutations happen inside the graph, and
an output that is an input or a view of one is made from the caller's tensor. If they would do
anything else, the graph is not covered (`NotCoveredError`) and is traced at every start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.recorded_operators import LongWayError
from kernelfarm.client.pytorch.private import (
    MutationType,
    OpOverload,
    OutputAliasInfo,
    OutputType,
    PlainTensorMeta,
    ViewAndMutationMeta,
)
from kernelfarm.client.pytorch.private.operators import schema_of
from kernelfarm.client.pytorch.private.tracing import storage_identity
from kernelfarm.client.traces.sizes import NotCoveredError

_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_COMPUTED = frozenset(
    {OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view}
)


@dataclass(frozen=True, slots=True)
class OutputConvention:
    """One output of the function: the program's output, an argument, or a view of an argument.

    A view has the layout of the program's output and begins `offset` elements after the first
    element of its argument. `dynamic` are the axes with varying extents; the client marks them for
    Dynamo's later graphs.
    """

    argument: int | None = None
    offset: int | None = None
    dynamic: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallingConvention:
    """The outputs in order; `written` are the arguments whose version increases at each call."""

    argument_count: int
    outputs: tuple[OutputConvention, ...]
    written: tuple[int, ...]


def calling_convention(
    meta: ViewAndMutationMeta, graph: fx.Graph, argument_count: int
) -> CallingConvention:
    """The calling convention of an inference graph, from AOT Autograd's metadata.

    Raises:
        NotCoveredError: AOT Autograd's wrappers do more than the convention can express.
    """
    placeholders = graph.find_nodes(op="placeholder")
    if not argument_count == len(placeholders) == len(meta.input_info):
        raise NotCoveredError("arguments that share memory")
    _check_is_plain(meta)
    returned = graph.output_node().args[0]
    items = returned if isinstance(returned, list | tuple) else (returned,)
    if len(items) != len(meta.output_info):
        raise NotCoveredError("outputs that the tracer added")
    outputs = tuple(
        _output_fact(info, item, placeholders)
        for info, item in zip(meta.output_info, items, strict=True)
    )
    written = tuple(meta.mutated_graph_handled_indices_seen_by_autograd)
    return CallingConvention(argument_count, outputs, written)


def recorded_convention(graph: fx.Graph) -> CallingConvention:
    """The calling convention of a graph that the short way recorded.

    Raises:
        LongWayError: AOT Autograd's wrappers do more than the convention can express.
    """
    arguments = graph.find_nodes(op="placeholder")
    owners: dict[int, list[int]] = {}
    for index, node in enumerate(arguments):
        if isinstance(node.meta["val"], torch.Tensor):
            owners.setdefault(storage_identity(node.meta["val"]), []).append(index)
    returned = graph.output_node().args[0]
    items = returned if isinstance(returned, list | tuple) else (returned,)
    outputs = tuple(_recorded_output(item, arguments, owners) for item in items)
    return CallingConvention(len(arguments), outputs, ())


def _recorded_output(
    item: Any, arguments: list[fx.Node], owners: Mapping[int, list[int]]
) -> OutputConvention:
    value = item.meta["val"] if isinstance(item, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return OutputConvention()
    if value.requires_grad:
        raise LongWayError("outputs that require gradients")
    dynamic = _varying_axes(value)
    sharing = owners.get(storage_identity(value), [])
    if not sharing:
        return OutputConvention(dynamic=dynamic)
    if len(sharing) > 1:
        raise LongWayError("arguments that share memory")
    owner = sharing[0]
    base = arguments[owner].meta["val"]
    if base.requires_grad:
        raise LongWayError("outputs that require gradients")
    if item.op == "placeholder":
        return OutputConvention(owner, dynamic=dynamic)
    _check_is_declared(item)
    try:
        return OutputConvention(owner, _offset(base, value), dynamic)
    except NotCoveredError as reason:
        raise LongWayError(str(reason)) from reason


def _check_is_plain(meta: ViewAndMutationMeta) -> None:
    if meta.tokens or meta.is_rng_op_functionalized or meta.grad_enabled_mutation is not None:
        raise NotCoveredError("effects")
    subclasses = (*meta.subclass_inp_meta, *meta.subclass_fw_graph_out_meta)
    if not all(isinstance(found, PlainTensorMeta) for found in subclasses):
        raise NotCoveredError("tensor subclasses")
    if any(info.mutation_type is MutationType.MUTATED_OUT_GRAPH for info in meta.input_info):
        raise NotCoveredError("an input that is mutated after the graph")
    if meta.num_intermediate_bases or meta.num_mutated_inp_runtime_indices:
        raise NotCoveredError("outputs that the tracer added")


def _output_fact(info: OutputAliasInfo, item: Any, arguments: list[fx.Node]) -> OutputConvention:
    value = item.meta.get("val") if isinstance(item, fx.Node) else None
    # Not AOT Autograd's own list: it may be older than a guard that makes an extent constant.
    dynamic = _varying_axes(value) if isinstance(value, torch.Tensor) else ()
    if info.requires_grad:
        raise NotCoveredError("outputs that require gradients")
    if info.output_type in _COMPUTED:
        return OutputConvention(dynamic=dynamic)
    if info.base_idx is None:
        raise NotCoveredError("outputs that are views of each other")
    if info.output_type is OutputType.is_input:
        return OutputConvention(info.base_idx, dynamic=dynamic)
    if info.output_type is not OutputType.alias_of_input:
        raise NotCoveredError("outputs that are views of each other")
    base = arguments[info.base_idx].meta["val"]
    return OutputConvention(info.base_idx, _offset(base, value), dynamic)


def _check_is_declared(view: fx.Node) -> None:
    """Checks that AOT Autograd knows that a value is a view of an argument."""
    while view.op != "placeholder":
        source = view.args[0]
        if not isinstance(source, fx.Node):
            raise LongWayError("an undeclared view")
        if isinstance(view.target, OpOverload) and not _declares_view(view.target):
            raise LongWayError("an undeclared view")  # such as `unsafe_split`
        view = source


def _declares_view(operator: OpOverload) -> bool:
    returns = schema_of(operator).returns
    return operator is _UNSAFE_VIEW or any(result.alias_info for result in returns)


def _varying_axes(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(axis for axis, extent in enumerate(value.shape) if _varies(extent))


def _varies(extent: int | torch.SymInt) -> bool:
    return isinstance(extent, torch.SymInt) and not extent.node.expr.is_Integer


def _offset(base: torch.Tensor, value: object) -> int:
    """How many elements after the first element of an argument a view of it begins."""
    if not isinstance(value, torch.Tensor) or not _reads_alike(base, value):
        raise NotCoveredError("a view of an input with another element type")
    offset = value.storage_offset() - base.storage_offset()
    if not isinstance(offset, int):
        raise NotCoveredError("a view with a varying offset")
    return offset


def _reads_alike(base: torch.Tensor, value: torch.Tensor) -> bool:
    facts = [(t.dtype, t.is_conj(), t.is_neg()) for t in (base, value)]
    return facts[0] == facts[1] and not base.is_conj() and not base.is_neg()
