"""Compiles functional graphs through the farm; what it cannot serve runs as it was captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import fx

from kernelfarm.client.capture.captured import TracedModule
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.farm.wait_budget import WaitBudget
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.process.garbage_collection import no_collections
from kernelfarm.client.programs.cuda_graphs import CudaGraphs, GraphUse, TracedFacts
from kernelfarm.client.programs.eager import warn_eager
from kernelfarm.client.programs.finder import (
    BackendOptions,
    FirstSearch,
    ProgramFinder,
    start_runner,
)
from kernelfarm.client.programs.graph_runner import BoxedFunction, GraphRunner
from kernelfarm.client.programs.traced_facts import RecordedUse
from kernelfarm.client.pytorch.deterministic import boxed_with_deterministic_kernels
from kernelfarm.client.pytorch.private import make_boxed_func, unset_fake_temporarily
from kernelfarm.client.traces.cache import TraceCache, autocast_is_on
from kernelfarm.digest import program_key
from kernelfarm.errors import KernelfarmError

if TYPE_CHECKING:
    from kernelfarm.client.precompiled.packaging import Packaging


@dataclass(frozen=True, slots=True)
class _Traced:
    """A functional graph, and what calls of it need.

    `eager` runs what the graph was traced from. `facts` reads what recorded calls need to know. If
    `leaves_autocast`, calls have the state of autocast of their caller.
    """

    module: TracedModule
    eager: BoxedFunction
    facts: Callable[[], TracedFacts]
    leaves_autocast: bool = False


class FarmCompiler:
    """Compiles functional graphs; stores a graph's trace if it has a trace cache.

    The program of a backward graph drops its arguments as it uses them.
    """

    def __init__(
        self,
        options: BackendOptions,
        budget: WaitBudget,
        recorded: RecordedUse,
        trace_cache: TraceCache | None = None,
        packaging: Packaging | None = None,
    ) -> None:
        self._recorded = recorded
        self._options, self.products = options, options.compiled.products
        self._budget = budget
        self._trace_cache = trace_cache
        self._packaging = packaging

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedFunction:
        """The function of AOT Autograd's graph `gm`.

        Raises:
            KernelfarmError: (mode `strict` only) the farm could not serve the graph.
        """
        # AOT Autograd calls this in its fake mode; captured constants and buffers are real.
        with unset_fake_temporarily():
            facts = partial(self._recorded.facts, gm)
            boxed = self._boxed(_Traced(gm, make_boxed_func(gm.forward), facts))
            if self._packaging is None:
                return boxed
            is_alone = self._recorded.use is GraphUse.INFERENCE
            static = self._recorded.facts(gm).static if is_alone else None
            return self._packaging.stored(gm, boxed, static)

    def of_recorded(self, recorded: TracedModule, module: fx.GraphModule) -> BoxedFunction:
        """The function of a graph that was recorded from Dynamo's graph `module`."""
        facts = partial(self._recorded.facts_of_recorded, recorded.graph, module)
        return self._boxed(_Traced(recorded, eager_calls(module), facts, autocast_is_on()))

    def of_divided(self, module: TracedModule, gm: fx.GraphModule) -> BoxedFunction:
        """The function of a graph that was made of AOT Autograd's graph `gm`.

        It has the arguments of `gm`, and more behind them.
        """
        with unset_fake_temporarily():
            facts = partial(self._recorded.facts, gm, module.graph)
            return self._boxed(_Traced(module, eager_calls(gm), facts))

    def _boxed(self, traced: _Traced) -> BoxedFunction:
        if self._options.compiled.is_deterministic:
            traced = replace(traced, eager=boxed_with_deterministic_kernels(traced.eager))
        is_recorded = self._options.settings.cuda_graphs
        graphs = CudaGraphs(traced.facts()) if is_recorded else None
        try:
            runner = self._compile(traced, graphs)
        except KernelfarmError as error:
            if self._options.settings.mode == "strict":
                raise
            warn_eager(error, self._options.settings)
            runner = None
        if runner is not None:
            return runner.boxed()
        return traced.eager if graphs is None else graphs.around(traced.eager)

    def _compile(self, traced: _Traced, graphs: CudaGraphs | None) -> GraphRunner | None:
        module = traced.module
        with no_collections():
            captured = capture(module)
        if captured.is_trivial and self._packaging is None:
            return None
        target = device_support(captured.device).target
        key = program_key(captured.graph, target, self._options.compiled.pairs())
        if self._trace_cache is not None:
            with self._budget.charged():
                self._trace_cache.store(module, captured, key)
        if self._packaging is not None:
            self._packaging.note(module, captured, key, target)
        if captured.is_trivial:
            return None
        finder = ProgramFinder(
            captured,
            key,
            self._options,
            FirstSearch(self._budget),
            leaves_autocast=traced.leaves_autocast,
            drops_arguments=self._recorded.use is GraphUse.BACKWARD,
        )
        return start_runner(traced.eager, finder, self._options.settings, graphs)


def eager_calls(module: fx.GraphModule) -> BoxedFunction:
    """The graph as Dynamo captured it, for calls without a program.

    A frozen graph has more arguments, behind those of Dynamo's.
    """
    count = len(module.graph.find_nodes(op="placeholder"))

    def run(args: list[Any]) -> Sequence[Any]:
        results: Sequence[Any] = module(*args[:count])
        return results

    return run
