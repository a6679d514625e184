"""A trace as bytes: the captured graph and its calling convention.

The bytes are sealed with a digest, which detects damaged files but not forged ones. A client trusts
an entry because only this user can write its file (`traces.cache`), or because a trusted key signed
it (`traces.shared`). Nothing in an entry is evaluated as code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from google.protobuf.message import DecodeError

from kernelfarm.client.capture.captured import CapturedGraph, ModuleOutput, OutputView
from kernelfarm.client.capture.rebuilt_nodes import RebuiltNode, is_same_node, rebuilt_nodes
from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.client.traces.calling_convention import CallingConvention, OutputConvention
from kernelfarm.client.traces.header import TraceHeader, WindowTexts, joined, parted
from kernelfarm.client.traces.sizes import NotCoveredError
from kernelfarm.errors import KernelfarmError, MalformedMessageError
from kernelfarm.ir.check_graph import check_client_graph
from kernelfarm.ir.graph_ir import Constant, Graph
from kernelfarm.ir.text.expr import parse_expr
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire import graph_from_proto, graph_to_proto

TensorOptions = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """The trace of a graph with these parts (`traces.digest`), without torch's modules.

    `sources` has the argument's position for each input of the graph, None for a constant.
    `tensor_options` has the device, layout and pinning arguments of nodes, by node number.
    """

    key: bytes
    parts: Mapping[str, str]
    graph: Graph
    sources: tuple[int | None, ...]
    module_outputs: tuple[ModuleOutput, ...]
    negated: frozenset[int]
    tensor_options: TensorOptions
    convention: CallingConvention

    def captured(self, device: torch.device) -> CapturedGraph:
        """The captured graph, on the device of this process.

        Raises:
            InvalidGraphError: an operator is not registered in this process.
        """
        sources = tuple(
            source if source is not None else _tensor_of(given.kind, device)
            for source, given in zip(self.sources, self.graph.inputs, strict=True)
        )
        options = {number: _here(args, device) for number, args in self.tensor_options.items()}
        nodes = rebuilt_nodes(self.graph, options)
        return CapturedGraph(self.graph, sources, nodes, device, self.module_outputs, self.negated)


def graph_entry(
    key: bytes, target: str, captured: CapturedGraph, argument_count: int
) -> TraceEntry:
    """The entry of a functional graph alone, which is called as it was traced.

    Raises:
        NotCoveredError: decoding the entry would not give the same trace.
    """
    outputs = (OutputConvention(),) * len(captured.module_outputs)
    convention = CallingConvention(argument_count, outputs, ())
    return entry_of(key, {"target": target}, captured, convention, captured.device)


def entry_of(
    key: bytes,
    parts: Mapping[str, str],
    captured: CapturedGraph,
    convention: CallingConvention,
    device: torch.device,
) -> TraceEntry:
    """The entry of a trace.

    Raises:
        NotCoveredError: decoding the entry would not give the same trace.
    """
    if captured.device != device:
        raise NotCoveredError("a device that no input has")
    sources = []
    for source, given in zip(captured.sources, captured.graph.inputs, strict=True):
        is_constant = isinstance(given.kind, Constant)
        if not isinstance(source, int) and not is_constant:
            raise NotCoveredError("a large tensor that the graph holds")
        sources.append(source if isinstance(source, int) else None)
    options = {
        number: found
        for number, node in enumerate(captured.nodes)
        if (found := _tensor_options(node, device))
    }
    entry = TraceEntry(
        key,
        parts,
        captured.graph,
        tuple(sources),
        captured.module_outputs,
        captured.negated,
        options,
        convention,
    )
    _check_round_trip(entry, captured, device)
    return entry


def _check_round_trip(entry: TraceEntry, captured: CapturedGraph, device: torch.device) -> None:
    try:
        found = from_bytes(to_bytes(entry))
        nodes = found.captured(device).nodes
    except KernelfarmError as error:
        raise NotCoveredError("nodes that cannot be rebuilt") from error
    is_same = found == entry and all(
        isinstance(made, RebuiltNode)
        and not isinstance(traced, RebuiltNode)
        and is_same_node(traced, made)
        for traced, made in zip(captured.nodes, nodes, strict=True)
    )
    if not is_same:
        raise NotCoveredError("nodes that cannot be rebuilt")


def to_bytes(entry: TraceEntry) -> bytes:
    """The entry as bytes."""
    header = {
        "key": entry.key.hex(),
        "parts": dict(entry.parts),
        "sources": entry.sources,
        "module_outputs": [
            [item.number, item.argument, None if item.view is None else _texts(item.view)]
            for item in entry.module_outputs
        ],
        "negated": sorted(entry.negated),
        "tensor_options": {
            str(number): dict(args) for number, args in entry.tensor_options.items()
        },
        "argument_count": entry.convention.argument_count,
        "outputs": [[o.argument, o.offset, o.dynamic] for o in entry.convention.outputs],
        "written": entry.convention.written,
    }
    graph = graph_to_proto(entry.graph).SerializeToString(deterministic=True)
    return joined(json.dumps(header), graph)


def from_bytes(content: bytes) -> TraceEntry:
    """The entry of `to_bytes`.

    Raises:
        MalformedMessageError: the bytes are not an entry.
        InvalidGraphError: its graph is not valid.
    """
    header, sent = parted(content)
    try:
        message = graph_pb2.Graph.FromString(sent)
    except DecodeError as error:
        raise MalformedMessageError(f"not a trace: {error}") from error
    graph = graph_from_proto(message)
    check_client_graph(graph)
    header.check(graph)
    return _entry(header, graph)


def _entry(header: TraceHeader, graph: Graph) -> TraceEntry:
    outputs = tuple(OutputConvention(*fact) for fact in header.outputs)
    return TraceEntry(
        bytes.fromhex(header.key),
        header.parts,
        graph,
        header.sources,
        tuple(
            ModuleOutput(number, None if window is None else _window(window), argument)
            for number, argument, window in header.module_outputs
        ),
        frozenset(header.negated),
        {int(number): args for number, args in header.tensor_options.items()},
        CallingConvention(header.argument_count, outputs, header.written),
    )


def _texts(view: OutputView) -> list[Any]:
    shape, strides = [str(e) for e in view.shape], [str(e) for e in view.strides]
    return [shape, strides, str(view.offset)]


def _window(texts: WindowTexts) -> OutputView:
    shape, strides, offset = texts
    return OutputView(
        tuple(map(parse_expr, shape)), tuple(map(parse_expr, strides)), parse_expr(offset)
    )


_TENSOR_OPTIONS = frozenset({"device", "layout", "pin_memory"})


def _tensor_options(node: Any, device: torch.device) -> dict[str, Any]:
    """The tensor options of a traced node as plain values; they are not part of the graph."""
    found: dict[str, Any] = {}
    for name in _TENSOR_OPTIONS & node.kwargs.keys():
        value = node.kwargs[name]
        if value is None or isinstance(value, bool):
            found[name] = value
        elif value == device or (device.index is None and value == torch.device(device.type)):
            found[name] = "here"
        elif value is torch.strided:
            found[name] = "strided"
        else:
            raise NotCoveredError("a tensor on another device or in another layout")
    return found


def _here(args: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    words = {"here": device, "strided": torch.strided}
    return {name: words.get(value, value) for name, value in args.items()}


def _tensor_of(kind: object, device: torch.device) -> torch.Tensor:
    if not isinstance(kind, Constant):
        raise MalformedMessageError("an input that is neither an argument nor a constant")
    shape = tuple(extent.as_int() for extent in kind.type.shape)
    dtype = dtype_to_torch(kind.type.dtype)
    if not kind.data:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(bytearray(kind.data), dtype=dtype).reshape(shape).to(device)
