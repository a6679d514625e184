"""Captures the package of a case: PyTorch's `aot_compile`, with a backend that only traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.inline_regions import inline_regions
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.preserve_attention import preserve_attention
from kernelfarm.client.capture.tracing import traced
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.packages.call_facts import question_of
from kernelfarm.client.packages.header import joined
from kernelfarm.client.packages.make import ModelCall, make_package
from kernelfarm.client.precompiled.artifacts import SerializableGraph
from kernelfarm.client.precompiled.content import PrecompiledGraph, version
from kernelfarm.client.precompiled.graph_code import GraphCode
from kernelfarm.client.pytorch.private import (
    SerializableAOTDispatchCompiler,
    make_boxed_func,
    unset_fake_temporarily,
)
from kernelfarm.client.pytorch.private.packages import storing_graphs
from kernelfarm.client.traces.cache import TraceCache, autocast_is_on
from kernelfarm.client.traces.entry import TraceEntry, to_bytes
from kernelfarm.client.traces.sizes import NotCoveredError
from kernelfarm.client.warming.models import BuiltModel
from kernelfarm.digest import program_key
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire import graph_from_proto


def captured_package(
    built: BuiltModel, graph: bytes, access: FarmAccess, options: CompileOptions
) -> bytes:
    """The package of a model's call for the target of this device; `graph` is its only graph.

    Raises:
        NotCoveredError: there can be none; the message says why.
    """
    made = ModelCall(built.call, built.args, built.kwargs)
    question = question_of(built.call, built.args, built.kwargs, options)
    if made.ranges():
        question = question.varying()
    try:
        package = make_package(made, question, _Tracer(access, options))
    except NotCoveredError:
        raise
    except Exception as error:  # PyTorch or the user's code may raise anything
        cause = getattr(error, "inner_exception", error)
        text = str(cause).strip().partition("\n")[0]
        raise NotCoveredError(f"{type(cause).__name__}: {text}") from error
    target = question.parts["target"]
    expected = graph_from_proto(graph_pb2.Graph.FromString(graph))
    keys = {program_key(found, target, options.pairs()) for found in (package.graph, expected)}
    if len(keys) > 1:  # the farm would send the package without its program
        raise NotCoveredError("its graph differs from that of `torch.compile`")
    return joined(package.header, package.body)


class _Tracer:
    """A backend that traces a graph, and runs it as it was captured."""

    def __init__(self, access: FarmAccess, options: CompileOptions) -> None:
        self._access = access
        self._options = options

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        inline_regions(gm)
        preserve_attention(gm)
        order = InputOrder(gm)
        cache = TraceCache(order.module, self._access, self._options, is_needed=True)
        found: list[bytes] = []

        def compiler(traced_module: fx.GraphModule, _: Sequence[Any]) -> Any:
            with unset_fake_temporarily():
                captured = capture(traced_module)
                entry = cache.entry(traced_module, captured, self._key(captured))
            found.append(self._content(entry, cache.device.type, order.positions))
            return GraphCode(found[-1], make_boxed_func(traced_module.forward))

        with storing_graphs(f"kernelfarm warm {version()} {self._options.pairs()}"):
            stored = SerializableAOTDispatchCompiler(GraphCode, compiler)
            run = traced(order.module, order.of(example_inputs), stored)
        (content,) = found
        return SerializableGraph(content, order.called_as_before(run))

    def _content(self, entry: TraceEntry, device: str, positions: tuple[int, ...] | None) -> bytes:
        return PrecompiledGraph(
            to_bytes(entry),
            device=device,
            positions=positions,
            is_deterministic=self._options.is_deterministic,
            fallback_random=self._options.fallback_random,
            products=self._options.products.value,
            leaves_autocast=autocast_is_on(),
        ).to_bytes()

    def _key(self, captured: CapturedGraph) -> bytes:
        target = device_support(captured.device).target
        return program_key(captured.graph, target, self._options.pairs())
