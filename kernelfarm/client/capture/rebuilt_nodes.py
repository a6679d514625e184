"""Rebuilds nodes for extern steps from a captured graph.

The extern steps of a program run nodes of the client's own trace. A warm start has no trace, only
the captured graph. Operators are looked up by name among the registered operators of PyTorch;
arguments are plain values of the graph. Nothing in the graph is evaluated as code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.operator_names import OWN
from kernelfarm.client.capture.sizes import SizeReader
from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.client.pytorch.private import OpOverload
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref, TensorType

NAMESPACES = frozenset({"aten", "prims"})
"""The namespaces of operators that are looked up: PyTorch's own, defined by its version."""

_MEMORY_FORMATS: Mapping[str, torch.memory_format] = {
    str(form).removeprefix("torch."): form
    for form in (
        torch.contiguous_format,
        torch.preserve_format,
        torch.channels_last,
        torch.channels_last_3d,
    )
}


@dataclass(frozen=True, slots=True)
class RebuiltNode:
    """The parts of a traced node that a step needs; a tensor argument is its traced type."""

    name: str
    target: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def rebuilt_nodes(
    graph: Graph, tensor_options: Mapping[int, Mapping[str, Any]]
) -> tuple[RebuiltNode, ...]:
    """One rebuilt node for each node of a captured graph.

    `tensor_options` maps node numbers to arguments that are not part of the graph: device, layout
    and pinning of the tensor that the node makes.

    Raises:
        InvalidGraphError: an operator is not registered in this process.
    """
    types = graph.types()
    return tuple(
        _rebuilt(node, types, tensor_options.get(number, {}))
        for number, node in enumerate(graph.nodes)
    )


def is_same_node(traced: fx.Node, rebuilt: RebuiltNode) -> bool:
    """True if a rebuilt node computes the same as the traced one."""
    if traced.target is not rebuilt.target:
        return False
    reader = SizeReader()
    return _same(tuple(traced.args), rebuilt.args, reader) and _same(
        dict(traced.kwargs), dict(rebuilt.kwargs), reader
    )


def operator_named(name: str) -> OpOverload | None:
    """The operator of a wire name; None if it is neither kernelfarm's nor in `NAMESPACES`."""
    if name in OWN:
        return OWN[name]
    namespace, _, rest = name.partition(".")
    packet_name, _, overload = rest.rpartition(".")
    if namespace not in NAMESPACES or not packet_name.isidentifier():
        return None
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    found = getattr(packet, overload, None)
    return found if isinstance(found, OpOverload) else None


def _rebuilt(
    node: Node, types: Mapping[int, TensorType], tensor_options: Mapping[str, Any]
) -> RebuiltNode:
    target = operator_named(node.op)
    if target is None:
        raise InvalidGraphError(f"operator {node.op} is not registered in this process")
    args = tuple(_argument(arg, types) for arg in node.args)
    kwargs = {name: _argument(arg, types, name) for name, arg in node.attrs}
    return RebuiltNode(node.op, target, args, {**kwargs, **tensor_options})


def _argument(arg: Arg, types: Mapping[int, TensorType], name: str = "") -> Any:
    if isinstance(arg, Ref):
        found = types.get(arg.value)
        if found is None:
            raise InvalidGraphError(f"value {arg.value} has no type")
        return found
    if isinstance(arg, tuple):
        return tuple(_argument(item, types) for item in arg)
    if isinstance(arg, DType):
        return dtype_to_torch(arg)
    if isinstance(arg, str) and name == "memory_format":
        return _MEMORY_FORMATS[arg]
    return arg


def _same(traced: Any, rebuilt: Any, reader: SizeReader) -> bool:
    if isinstance(traced, fx.Node):
        traced = traced.meta.get("val")
    if isinstance(traced, torch.Tensor):
        return isinstance(rebuilt, TensorType) and (
            dtype_to_torch(rebuilt.dtype) is traced.dtype
            and rebuilt.shape == reader.read_all(traced.shape)
            and rebuilt.strides == reader.read_all(traced.stride())
        )
    if isinstance(traced, torch.SymInt):
        return bool(reader.read(traced) == rebuilt)
    if isinstance(traced, dict):
        return (
            isinstance(rebuilt, dict)
            and traced.keys() == rebuilt.keys()
            and all(_same(traced[key], rebuilt[key], reader) for key in traced)
        )
    if isinstance(traced, list | tuple):
        return (
            isinstance(rebuilt, tuple)
            and len(traced) == len(rebuilt)
            and all(_same(a, b, reader) for a, b in zip(traced, rebuilt, strict=True))
        )
    # As text: -0.0 is not 0.0, and NaN is NaN.
    return type(traced) is type(rebuilt) and repr(traced) == repr(rebuilt)
