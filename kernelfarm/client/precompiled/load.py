"""Makes a callable from the bytes of a precompiled graph, without tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelfarm.client import counters
from kernelfarm.client.capture.input_order import called_in_order
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.wait_budget import WaitBudget
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.precompiled.content import PrecompiledGraph
from kernelfarm.client.process.exported_spans import start_client_export
from kernelfarm.client.programs.cuda_graphs import CudaGraphs, GraphUse, TracedFacts
from kernelfarm.client.programs.eager import warn_eager
from kernelfarm.client.programs.finder import (
    BackendOptions,
    FirstSearch,
    ProgramFinder,
    start_runner,
)
from kernelfarm.client.programs.graph_runner import BoxedFunction
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.pytorch.deterministic import boxed_with_deterministic_kernels
from kernelfarm.client.runtime.captured_graph import CapturedGraphRunner
from kernelfarm.client.settings import client_settings
from kernelfarm.client.traces.calls import callable_for
from kernelfarm.client.traces.entry import TraceEntry, from_bytes
from kernelfarm.digest import program_key
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.product_choice import ProductChoice


@dataclass(frozen=True, slots=True)
class LoadingProcess:
    """What the process that loads a package says of it, in place of the package.

    `stated` are the settings that its graphs use. `programs` came with the package, by their keys.
    """

    stated: Mapping[str, Any]
    programs: Mapping[bytes, PrefetchedProgram] = field(default_factory=dict)


_loading: ContextVar[LoadingProcess | None] = ContextVar("loading", default=None)


@contextmanager
def loading_as(process: LoadingProcess) -> Iterator[None]:
    """Graphs that are loaded in this block use these settings and programs."""
    token = _loading.set(process)
    try:
        yield
    finally:
        _loading.reset(token)


def loaded(content: bytes) -> Callable[..., Any]:
    """The function that Dynamo's bytecode calls, from the bytes of `PrecompiledGraph`.

    The program comes from disk or from the farm. If neither has it, the graph runs eager with one
    warning, as a graph that was traced in this process.

    Raises:
        MalformedMessageError: the bytes are not a graph.
        UnsupportedVersionError: another version of kernelfarm or PyTorch made them.
        KernelfarmError: (mode `strict` only) the program is neither on disk nor at the farm.
    """
    start_client_export()
    graph = PrecompiledGraph.from_bytes(content)
    entry = from_bytes(graph.trace)
    program = _program(graph, entry)
    counters.count("precompiled.loaded")
    return called_in_order(callable_for(entry.convention, program), graph.positions)


def loaded_graph(content: bytes) -> BoxedFunction:
    """The boxed function of a functional graph, around which AOT Autograd has its own wrappers.

    Raises: as `loaded`.
    """
    graph = PrecompiledGraph.from_bytes(content)
    program = _program(graph, from_bytes(graph.trace))
    counters.count("precompiled.loaded")
    return program


def _program(graph: PrecompiledGraph, entry: TraceEntry) -> BoxedFunction:
    device = torch.device(graph.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    captured = entry.captured(device)
    eager = CapturedGraphRunner(captured).boxed()
    if graph.is_deterministic:
        eager = boxed_with_deterministic_kernels(eager)
    if captured.is_trivial:
        return eager
    process = _loading.get() or LoadingProcess(graph.stated)
    options = BackendOptions(
        client_settings(**process.stated),
        CompileOptions(
            graph.is_deterministic, graph.fallback_random, ProductChoice(graph.products)
        ),
    )
    target = device_support(device).target
    # The package may come from a machine with another processor.
    is_same = entry.parts.get("target") == target
    key = entry.key if is_same else program_key(entry.graph, target, options.compiled.pairs())
    is_recorded = options.settings.cuda_graphs and graph.static is not None
    facts = TracedFacts(GraphUse.INFERENCE, graph.static or ())
    graphs = CudaGraphs(facts) if is_recorded else None
    first = FirstSearch(WaitBudget(options.settings.timeout_s), process.programs.get(key))
    finder = ProgramFinder(captured, key, options, first, leaves_autocast=graph.leaves_autocast)
    try:
        return start_runner(eager, finder, options.settings, graphs).boxed()
    except KernelfarmError as error:
        if options.settings.mode == "strict":
            raise
        warn_eager(error, options.settings)
        return eager
