"""`torch.compile(model, backend="kernelfarm")`: PyTorch finds `kernelfarm` by its entry point.

A Dynamo graph becomes functional graphs: one for inference, or a forward and a backward graph if
gradients are needed. Most inference graphs take a short way, one run of the graph
(`capture.short_trace`); AOT Autograd makes the others. The farm compiles each for the device of its
tensors. If the farm cannot serve a graph, it runs as it was captured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kernelfarm import spans
from kernelfarm.client import counters
from kernelfarm.client.capture.inline_regions import inline_regions
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.preserve_attention import preserve_attention
from kernelfarm.client.capture.recorded_operators import LongWayError
from kernelfarm.client.capture.short_trace import short_trace
from kernelfarm.client.capture.tracing import traced
from kernelfarm.client.farm.wait_budget import WaitBudget
from kernelfarm.client.farm_compiler import FarmCompiler, eager_calls
from kernelfarm.client.loaders.by_device import device_support, target_of
from kernelfarm.client.process.exported_spans import start_client_export
from kernelfarm.client.process.garbage_collection import no_collections
from kernelfarm.client.programs.cuda_graphs import (
    CudaGraphs,
    GraphUse,
    TracedFacts,
    TrainingStep,
    drop_recordings,
)
from kernelfarm.client.programs.finder import (
    BackendOptions,
    FirstSearch,
    ProgramFinder,
    access_to,
    start_runner,
)
from kernelfarm.client.programs.graph_runner import BoxedFunction
from kernelfarm.client.programs.stated_options import (
    check_fits_packages,
    compile_options,
    is_frozen,
    is_tuned,
    stated_settings,
    with_mode,
)
from kernelfarm.client.programs.traced_facts import RecordedUse, static_inputs
from kernelfarm.client.pytorch.deterministic import boxed_with_deterministic_kernels
from kernelfarm.client.pytorch.huge_pages import move_to_huge_pages
from kernelfarm.client.pytorch.private import LATE_IMPORTS, unset_fake_temporarily
from kernelfarm.client.pytorch.private.packages import package_name
from kernelfarm.client.settings import client_settings
from kernelfarm.client.traces.cache import TraceCache, autocast_is_on
from kernelfarm.client.traces.calling_convention import recorded_convention
from kernelfarm.client.traces.calls import callable_for
from kernelfarm.errors import KernelfarmError

if TYPE_CHECKING:
    from kernelfarm.client.precompiled.packaging import Packaging

_log = logging.getLogger("kernelfarm.client")


def kernelfarm(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a Dynamo graph through the farm; forward and backward where gradients are needed.

    Keys of `options`: `endpoint`; `timeout_s` (the total wait for the farm); `mode` (`wait`, `swap`
    or `strict`); `strict` (bool: selects that mode); `autotune` (`measure` or `first`:
    how Triton kernels choose a configuration); `cuda_graphs` (bool: calls are replays of CUDA
    graphs); `model` (`id@revision`, the name by which its programs can be invalidated);
    `deterministic` (bool: results do not depend on scheduling; by default PyTorch's own flag);
    `fallback_random` (bool: draws eager's random numbers, which is slower); `products` (who
    computes products of matrices: `auto`, `library`, `own` or `tuned`); `freezing` (bool:
    parameters and buffers do not change, so what depends on them alone is computed once).
    `mode` is that option, or `reduce-overhead` for `cuda_graphs`; torch allows only one of the two.

    Raises:
        CallerError: an option does not exist, or its value is not valid.
        KernelfarmError: (mode `strict` only) the farm could not serve a graph.
    """
    inline_regions(gm)
    preserve_attention(gm)
    order = InputOrder(gm)
    options = with_mode(options, mode)
    stated = stated_settings(options)
    found = BackendOptions(
        client_settings(**stated), compile_options(options), is_frozen(options), is_tuned(options)
    )
    name = package_name(gm)
    if name is not None:
        check_fits_packages(options, "no aot_compile and no TORCH_CACHING_PRECOMPILE")
    start_client_export()
    # `access_to` connects in the background while the graph is digested or traced.
    access = access_to(found.settings)
    with spans.span("compile graph"):
        if found.is_frozen:
            return order.called_as_before(_frozen(order, example_inputs, found))
        cache = TraceCache(order.module, access, found.compiled, is_needed=name is not None)
        if name is None:
            compiled = _compiled(order, example_inputs, found, cache)
            return order.called_as_before(compiled)
        # Only precompilation needs these modules of PyTorch.
        from kernelfarm.client.precompiled.packaging import Packaging  # noqa: PLC0415

        packaging = Packaging(name, order, cache, found, stated)
        return packaging.packed(_compiled(order, example_inputs, found, cache, packaging))


# Dynamo calls it when it drops the code that it compiled.
kernelfarm.reset = drop_recordings  # type: ignore[attr-defined] # torch reads this attribute


def _compiled(
    order: InputOrder,
    example_inputs: Sequence[Any],
    options: BackendOptions,
    cache: TraceCache | None,
    packaging: Packaging | None = None,
) -> Callable[..., Any]:
    """The function for Dynamo, with its arguments in the order of `order.module`."""
    budget = WaitBudget(options.settings.timeout_s)
    gm, inputs = order.module, order.of(example_inputs)
    warm = None if cache is None else _warm_start(gm, cache, options, budget)
    if warm is not None:
        return warm
    step = TrainingStep()
    uses = {use: RecordedUse(use, step) for use in GraphUse}
    forward = FarmCompiler(options, budget, uses[GraphUse.FORWARD], None, packaging)
    inference = FarmCompiler(options, budget, uses[GraphUse.INFERENCE], cache, packaging)
    backward = FarmCompiler(options, budget, uses[GraphUse.BACKWARD], None, packaging)
    short = _short_way(gm, inputs, inference)
    # A package needs the graph's trace; AOT Autograd stores a graph without one by other means.
    if short is not None and (packaging is None or (cache and cache.known is not None)):
        return short
    if packaging is None:
        return traced(gm, inputs, forward, inference, backward, target_of=target_of)
    with packaging.storing_graphs():
        compilers = map(packaging.storing, (forward, inference, backward))
        return traced(gm, inputs, *compilers, target_of=target_of)


def _frozen(
    order: InputOrder, example_inputs: Sequence[Any], options: BackendOptions
) -> Callable[..., Any]:
    """The function of a frozen graph, with its arguments in the order of `order.module`.

    Its trace is not cached: each process has to compute the graph's constants.
    """
    # Few processes freeze models.
    from kernelfarm.client.freezing.checks import frozen_inputs  # noqa: PLC0415
    from kernelfarm.client.freezing.constants import (  # noqa: PLC0415
        FrozenConstants,
        warn_not_frozen,
    )
    from kernelfarm.client.freezing.frozen_graph import (  # noqa: PLC0415
        NotFrozenError,
        freeze_graph,
    )

    gm, inputs = order.module, order.of(example_inputs)
    parameters = frozen_inputs(gm, inputs)
    use = RecordedUse(GraphUse.INFERENCE, TrainingStep())
    compiler = FarmCompiler(options, WaitBudget(options.settings.timeout_s), use)
    try:
        with no_collections():
            recorded = short_trace(gm, inputs)
            convention = recorded_convention(recorded.graph)
            frozen = freeze_graph(recorded, parameters, products=compiler.products)
    except LongWayError as error:
        counters.count(f"traced.long.{error.reason}")
        inference = partial(_frozen_inference, compiler, parameters, len(inputs))
        return traced(gm, inputs, compiler, inference)
    except NotFrozenError as reason:
        warn_not_frozen(str(reason))
        return _compiled(order, example_inputs, options, None)
    counters.count("traced.short")
    if frozen is None:
        move_to_huge_pages(inputs[position] for position in parameters)
        return callable_for(convention, compiler.of_recorded(recorded, gm))
    program = compiler.of_recorded(frozen.module, gm)
    return callable_for(convention, FrozenConstants(frozen).passed_to(program))


def _frozen_inference(
    compiler: FarmCompiler,
    parameters: Sequence[int],
    count: int,
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
) -> BoxedFunction:
    """The function of AOT Autograd's graph of a frozen model, which has `count` arguments.

    Parameters and buffers that the graph writes, such as caches, are not frozen.
    """
    from kernelfarm.client.freezing.constants import (  # noqa: PLC0415
        FrozenConstants,
        warn_not_frozen,
    )
    from kernelfarm.client.freezing.frozen_graph import (  # noqa: PLC0415
        NotFrozenError,
        freeze_graph,
    )
    from kernelfarm.client.freezing.written_inputs import written_arguments  # noqa: PLC0415

    if len(gm.graph.find_nodes(op="placeholder")) != count:
        warn_not_frozen("arguments that share memory")
        return compiler(gm, example_inputs)
    written = written_arguments(gm.graph)
    with unset_fake_temporarily():
        try:
            kept = [at for at in parameters if at not in written]
            frozen = freeze_graph(gm, kept, products=compiler.products)
        except NotFrozenError as reason:
            warn_not_frozen(str(reason))
            frozen = None
    if frozen is None:
        return compiler(gm, example_inputs)
    return FrozenConstants(frozen).passed_to(compiler.of_divided(frozen.module, gm))


def preload() -> None:
    """Imports modules, finds the host's target and connects, so that a first compile is faster."""
    for name in LATE_IMPORTS:
        import_module(name)
    settings = client_settings()
    device_support(torch.device("cpu"))
    access = access_to(settings)
    access.client.connect()


def _short_way(
    module: fx.GraphModule, inputs: Sequence[Any], compiler: FarmCompiler
) -> Callable[..., Any] | None:
    """The function for Dynamo of a graph that one run traces; None if AOT Autograd must trace it.

    Raises:
        KernelfarmError: (mode `strict` only) the farm could not serve the graph.
    """
    try:
        with no_collections():
            recorded = short_trace(module, inputs)
            convention = recorded_convention(recorded.graph)
    except LongWayError as error:
        counters.count(f"traced.long.{error.reason}")
        _log.debug("kernelfarm: AOT Autograd traces a graph: %s", error.reason)
        return None
    counters.count("traced.short")
    return callable_for(convention, compiler.of_recorded(recorded, module))


def _warm_start(
    module: fx.GraphModule, trace_cache: TraceCache, options: BackendOptions, budget: WaitBudget
) -> Callable[..., Any] | None:
    """The function for Dynamo from a cached trace; None if the graph must be traced."""
    with budget.charged():
        trace = trace_cache.find()
    if trace is None:
        return None
    first = FirstSearch(budget, trace.prefetched)
    finder = ProgramFinder(
        trace.captured, trace.entry.key, options, first, leaves_autocast=autocast_is_on()
    )
    facts = TracedFacts(GraphUse.INFERENCE, static_inputs(module))
    graphs = CudaGraphs(facts) if options.settings.cuda_graphs else None
    eager = eager_calls(module)
    if options.compiled.is_deterministic:
        eager = boxed_with_deterministic_kernels(eager)
    try:
        runner = start_runner(eager, finder, options.settings, graphs)
    except KernelfarmError:
        return None
    return callable_for(trace.entry.convention, runner.boxed())
