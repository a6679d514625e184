"""`torch.compile(model, backend="kernelfarm")`: PyTorch finds `kernelfarm` by its entry point.

AOT Autograd turns a Dynamo graph into functional graphs: one for inference, or a forward and a
backward graph if gradients are needed. The farm compiles each for the device of its tensors. If the
farm cannot serve a graph, it runs as it was captured.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import fx

from kernelfarm import spans
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.preserve_attention import preserve_attention
from kernelfarm.client.capture.tracing import traced
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.wait_budget import WaitBudget
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.process.exported_spans import start_client_export
from kernelfarm.client.programs.eager import warn_eager
from kernelfarm.client.programs.graph_runner import BoxedFunction, GraphRunner
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.pytorch.private import (
    LATE_IMPORTS,
    make_boxed_func,
    unset_fake_temporarily,
)
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.client.settings import ClientSettings, client_settings
from kernelfarm.client.traces.cache import TraceCache, autocast_is_on
from kernelfarm.digest import program_key
from kernelfarm.errors import CallerError, KernelfarmError


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The options of `torch.compile(..., options={...})`, checked."""

    settings: ClientSettings
    compiled: CompileOptions


def kernelfarm(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a Dynamo graph through the farm; forward and backward where gradients are needed.

    Keys of `options`: `endpoint`; `timeout_s` (the total wait for the farm); `mode` (`wait`, `swap`
    or `strict`); `strict` (bool: selects that mode); `model` (`id@revision`, the name by which its
    programs can be invalidated); `deterministic` (bool); `fallback_random` (bool: draws eager's
    random numbers, which is slower). `mode` is the same as the option; torch allows only one of
    the arguments.

    Raises:
        CallerError: an option does not exist, or its value is not valid.
        KernelfarmError: (mode `strict` only) the farm could not serve a graph.
    """
    preserve_attention(gm)
    order = InputOrder(gm)
    stated = _backend_options(options or {}, mode)
    start_client_export()
    with spans.span("compile graph"):
        compiled = _compiled(order.module, order.of(example_inputs), stated)
    return order.called_as_before(compiled)


def _compiled(
    gm: fx.GraphModule, example_inputs: Sequence[Any], stated: BackendOptions
) -> Callable[..., Any]:
    # `_access_to` connects in the background while the graph is digested or traced.
    trace_cache = TraceCache(gm, _access_to(stated.settings), stated.compiled)
    budget = WaitBudget(stated.settings.timeout_s)
    warm = _warm_start(trace_cache, stated, budget)
    if warm is not None:
        return warm
    forward = _GraphCompiler(stated, budget)
    inference = _GraphCompiler(stated, budget, trace_cache)
    backward = _GraphCompiler(stated, budget, is_backward=True)
    return traced(gm, example_inputs, forward, inference, backward)


def preload() -> None:
    """Imports modules, finds the host's target and connects, so that a first compile is faster."""
    for name in LATE_IMPORTS:
        import_module(name)
    settings = client_settings()
    device_support(torch.device("cpu"))
    access = _access_to(settings)
    access.client.connect()


def _backend_options(options: Mapping[str, Any], mode: str | None) -> BackendOptions:
    known = {"endpoint", "timeout_s", "model", "mode", "strict"}
    known |= {"deterministic", "fallback_random"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise CallerError(f"options {unknown}; expected some of {sorted(known)}")
    stated = {
        key: options[key] for key in ("endpoint", "timeout_s", "model", "mode") if key in options
    }
    if "strict" in options:
        stated["mode"] = "strict" if options["strict"] else "wait"
    if mode is not None:
        stated["mode"] = mode
    compiled = CompileOptions(
        is_deterministic=bool(options.get("deterministic", False)),
        fallback_random=bool(options.get("fallback_random", False)),
    )
    return BackendOptions(client_settings(**stated), compiled)


class _GraphCompiler:
    """Compiles the graphs of AOT Autograd; stores a graph's trace if it has a trace cache.

    The program of a backward graph drops its arguments as it uses them.
    """

    def __init__(
        self,
        options: BackendOptions,
        budget: WaitBudget,
        trace_cache: TraceCache | None = None,
        *,
        is_backward: bool = False,
    ) -> None:
        self._is_backward = is_backward
        self._options = options
        self._budget = budget
        self._trace_cache = trace_cache

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedFunction:
        # AOT Autograd calls this in its fake mode; captured constants and buffers are real.
        with unset_fake_temporarily():
            try:
                runner = self._compile(gm)
            except KernelfarmError as error:
                if self._options.settings.mode == "strict":
                    raise
                warn_eager(error, self._options.settings)
                runner = None
        return make_boxed_func(gm.forward) if runner is None else runner.boxed()

    def _compile(self, gm: fx.GraphModule) -> GraphRunner | None:
        captured = capture(gm)
        if captured.is_trivial:
            return None
        target = device_support(captured.device).target
        key = program_key(captured.graph, target, self._options.compiled.pairs())
        if self._trace_cache is not None:
            with self._budget.charged():
                self._trace_cache.store(gm, captured, key)
        finder = _ProgramFinder(
            captured,
            key,
            self._options,
            _FirstSearch(self._budget),
            drops_arguments=self._is_backward,
        )
        return _start_runner(make_boxed_func(gm.forward), finder, self._options.settings)


def _warm_start(
    trace_cache: TraceCache, options: BackendOptions, budget: WaitBudget
) -> Callable[..., Any] | None:
    """The function for Dynamo from a cached trace; None if the graph must be traced."""
    with budget.charged():
        trace = trace_cache.find()
    if trace is None:
        return None
    first = _FirstSearch(budget, trace.prefetched)
    finder = _ProgramFinder(
        trace.captured, trace.entry.key, options, first, leaves_autocast=autocast_is_on()
    )
    try:
        runner = _start_runner(trace_cache.eager(), finder, options.settings)
    except KernelfarmError:
        return None
    return trace_cache.callable_for(trace.entry, runner.boxed())


@dataclass(frozen=True, slots=True)
class _FirstSearch:
    """The graph's wait budget, and the program that the farm sent with its trace, if it did."""

    budget: WaitBudget
    prefetched: PrefetchedProgram | None = None


class _ProgramFinder:
    """Finds the program of one captured graph: at first, and again after each invalidation.

    Later searches have wait budgets of their own.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        key: bytes,
        options: BackendOptions,
        first: _FirstSearch,
        *,
        leaves_autocast: bool = False,
        drops_arguments: bool = False,
    ) -> None:
        self._drops_arguments = drops_arguments
        self._captured = captured
        self._key = key
        self._options = options
        self._support = device_support(captured.device)
        self._first: _FirstSearch | None = first
        self._leaves_autocast = leaves_autocast

    def find(self) -> PlanRunner:
        """The program from the first tier that has it.

        Raises:
            KernelfarmError: no tier has it.
        """
        settings = self._options.settings
        search = self._first or _FirstSearch(WaitBudget(settings.timeout_s))
        self._first = None
        with search.budget.charged():
            loaded = _store.program(
                _access_to(settings),
                self._captured,
                self._support,
                self._options.compiled,
                self._key,
                search.prefetched,
            )
            bound = loaded.for_graph(self._captured, self._support.loader)
            return PlanRunner(
                bound,
                leaves_autocast=self._leaves_autocast,
                drops_arguments=self._drops_arguments,
            )


def _start_runner(
    eager: BoxedFunction, finder: _ProgramFinder, settings: ClientSettings
) -> GraphRunner:
    runner = GraphRunner(eager, finder.find, settings)
    if settings.mode == "swap":
        runner.fetch_in_background()
    else:
        runner.fetch()
    return runner


_lock = threading.Lock()
_accesses: dict[tuple[int, ClientSettings], FarmAccess] = {}
_store = ProgramStore()


def _access_to(settings: ClientSettings) -> FarmAccess:
    key = (os.getpid(), settings)  # channels and threads do not survive a fork
    with _lock:
        access = _accesses.get(key)
        if access is None:
            access = _accesses[key] = FarmAccess(settings)
        return access


def _reset_after_fork() -> None:
    _store.drop_unfinished()
    _lock.release()


# A fork acquires the lock first, so that no thread of the parent holds the child's copy.
os.register_at_fork(
    before=_lock.acquire,
    after_in_parent=_lock.release,
    after_in_child=_reset_after_fork,
)
