"""Makes the package of one call by PyTorch's `aot_compile`, with a header for its readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernelfarm.client.packages.call_facts import Question, input_names
from kernelfarm.client.packages.header import PackageHeader, RecordedSource, SizeRange, joined
from kernelfarm.client.precompiled.artifacts import SerializableGraph, WrappedGraph
from kernelfarm.client.precompiled.content import PrecompiledGraph
from kernelfarm.client.pytorch.private.packages import (
    aot_compiled,
    has_packages,
    marked_ranges,
    packed_function,
    storable_guards,
)
from kernelfarm.client.traces.entry import from_bytes
from kernelfarm.client.traces.shared import trace_content
from kernelfarm.client.traces.sizes import NotCoveredError
from kernelfarm.digest import program_key
from kernelfarm.ir.graph_ir import Graph


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a module or function; `is_dynamic` as the `dynamic` of `torch.compile`."""

    call: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    is_dynamic: bool | None = None

    def ranges(self) -> tuple[SizeRange, ...]:
        """The extents of all inputs, if some of them vary."""
        found, varies = [], bool(self.is_dynamic)
        for name, tensor in input_names(self.args, self.kwargs).items():
            marked = marked_ranges(tensor)
            varies = varies or bool(marked)
            for axis, extent in enumerate(tensor.shape):
                may_vary = self.is_dynamic and extent > 1  # 0 and 1 are constants
                unmarked = (2, None) if may_vary else (extent, extent)
                found.append(SizeRange(name, axis, *marked.get(axis, unmarked)))
        return tuple(found) if varies else ()


@dataclass(frozen=True, slots=True)
class MadePackage:
    """A package before it is signed: its header, its body, and the graph of its first program.

    A training step has a second program, for its backward pass, which clients find by its key.
    `function` runs the call in this process.
    """

    header: PackageHeader
    body: bytes = field(repr=False)
    graph: Graph
    function: Any = None

    def content(self, target: str, options: tuple[tuple[str, str], ...]) -> bytes:
        """What is signed for a target, which the device of the package has."""
        header = replace(self.header, parts={**self.header.parts, "target": target})
        key = program_key(self.graph, target, options)
        return trace_content(key, self.graph, joined(header, self.body))


def make_package(
    made: ModelCall, question: Question, backend: str | Callable[..., Any], **options: Any
) -> MadePackage:
    """The package of a call, which `torch.compile` compiles with this backend and these options.

    Raises:
        NotCoveredError: no package can express the call; the message is the reason.
        Exception: the model's own code, PyTorch or the backend fails.
    """
    if not has_packages():
        raise NotCoveredError(f"PyTorch {torch.__version__}, which has no packages")
    compiled = torch.compile(
        made.call,
        backend=backend,
        fullgraph=True,
        dynamic=made.is_dynamic,
        options={**options, "guard_filter_fn": storable_guards},
    )
    function = aot_compiled(compiled, made.args, made.kwargs)
    body, lines, graph = packed_function(function)
    if not isinstance(graph, SerializableGraph | WrappedGraph) or not graph.contents:
        raise NotCoveredError("a graph that kernelfarm cannot store")
    entry = from_bytes(PrecompiledGraph.from_bytes(graph.contents[0]).trace)
    sources = tuple(RecordedSource(*line) for line in lines)
    header = PackageHeader(question.parts, question.facts, sources, made.ranges())
    return MadePackage(header, body, entry.graph, function)
