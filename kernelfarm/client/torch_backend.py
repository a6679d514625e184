"""`torch.compile(model, backend="kernelfarm")`: PyTorch finds `kernelfarm` by its entry point.

AOT Autograd turns what Dynamo captured into functional graphs: one for inference, or a forward and
a backward graph when gradients are needed. Each is compiled by the farm for the device on which its
tensors lie; where the farm cannot help, the graph runs as it was captured.
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
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.preserve_attention import preserve_attention
from kernelfarm.client.capture.tracing import traced
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.wait_budget import WaitBudget
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs.eager import warn_eager
from kernelfarm.client.programs.graph_runner import BoxedFunction, GraphRunner, ReadyProgram
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.client.settings import ClientSettings, client_settings
from kernelfarm.client.traces.cache import TraceCache, autocast_is_on, without_autocast
from kernelfarm.digest import program_key
from kernelfarm.errors import CallerError, KernelfarmError

_LATE_IMPORTS = ("functorch.compile", "torch._inductor.debug", "torch.export._trace")
"""What torch's Dynamo and AOT Autograd themselves import at their first graph, 0.1 s."""


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What `torch.compile(..., options={...})` may say."""

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

    `options`: `endpoint`, `timeout_s` (of all waiting for the farm), `mode` (`wait`, `swap` or
    `strict`), `strict` (bool: that mode), `model` (`id@revision`, by which what is compiled can be
    invalidated), `deterministic` (bool), `fallback_random` (bool: eager's own random numbers, at
    the price of speed). `mode`: as the option; torch allows one of both.

    Raises:
        CallerError: an option that does not exist, or a value that it cannot have.
        KernelfarmError: (strict only) the farm could not serve a graph.
    """
    preserve_attention(gm)
    order = InputOrder(gm)
    stated = _backend_options(options or {}, mode)
    compiled = _compiled(order.module, order.of(example_inputs), stated)
    return order.called_as_before(compiled)


def _compiled(
    gm: fx.GraphModule, example_inputs: Sequence[Any], stated: BackendOptions
) -> Callable[..., Any]:
    # Connects while the graph is digested or traced.
    trace_cache = TraceCache(gm, _access_to(stated.settings), stated.compiled)
    time = WaitBudget(stated.settings.timeout_s)
    known = _program_of_trace(trace_cache, stated, time)
    if known is not None:
        return known
    compiler = _GraphCompiler(stated, time)
    return traced(gm, example_inputs, compiler, _GraphCompiler(stated, time, trace_cache))


def preload() -> None:
    """Imports, connects and finds the host's target, so that a first compile need not."""
    for name in _LATE_IMPORTS:
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
    """What AOT Autograd calls with each graph; `warm` keeps what it made of one for inference."""

    def __init__(
        self, options: BackendOptions, time: WaitBudget, trace_cache: TraceCache | None = None
    ) -> None:
        self._options = options
        self._wait_budget = time
        self._trace_cache = trace_cache

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedFunction:
        # AOT Autograd calls us in its fake mode; constants and buffers of ours are real.
        with unset_fake_temporarily():
            try:
                program = self._compile(gm)
            except KernelfarmError as error:
                if self._options.settings.mode == "strict":
                    raise
                warn_eager(error, self._options.settings)
                program = None
        return make_boxed_func(gm.forward) if program is None else program.boxed()

    def _compile(self, gm: fx.GraphModule) -> GraphRunner | None:
        captured = capture(gm)
        if captured.is_trivial:
            return None
        target = device_support(captured.device).target
        key = program_key(captured.graph, target, self._options.compiled.pairs())
        if self._trace_cache is not None:
            with self._wait_budget.charged():
                self._trace_cache.store(gm, captured, key)
        find = _make_find(captured, key, self._options, _FirstAttempt(self._wait_budget))
        return _start_runner(make_boxed_func(gm.forward), find, self._options.settings)


def _program_of_trace(
    trace_cache: TraceCache, options: BackendOptions, time: WaitBudget
) -> Callable[..., Any] | None:
    """What Dynamo calls, if its graph was traced before; else, or if that fails, it is traced."""
    with time.charged():
        trace = trace_cache.find()
    if trace is None:
        return None
    first = _FirstAttempt(time, trace.prefetched)
    find = _make_find(trace.captured, trace.entry.key, options, first)

    def find_outside_autocast() -> ReadyProgram:
        found = find()
        return ReadyProgram(without_autocast(found.run), found.validity)

    found_by = find_outside_autocast if autocast_is_on() else find
    try:
        program = _start_runner(trace_cache.eager(), found_by, options.settings)
    except KernelfarmError:
        return None
    return trace_cache.callable_for(trace.entry, program.boxed())


@dataclass(frozen=True, slots=True)
class _FirstAttempt:
    """What a program's first search has: what is left of its graph's time, and what was sent."""

    time: WaitBudget
    prefetched: PrefetchedProgram | None = None


def _make_find(
    captured: CapturedGraph, key: bytes, options: BackendOptions, first: _FirstAttempt
) -> Callable[[], ReadyProgram]:
    support, settings = device_support(captured.device), options.settings
    firsts = [first]

    def find() -> ReadyProgram:
        has = firsts.pop() if firsts else _FirstAttempt(WaitBudget(settings.timeout_s))
        with has.time.charged():
            access = _access_to(settings)
            shared = _store.program(
                access, captured, support, options.compiled, key, has.prefetched
            )
            runner = PlanRunner(shared.for_graph(captured, support.loader))
            return ReadyProgram(runner, shared.validity)

    return find


def _start_runner(
    eager: BoxedFunction, find: Callable[[], ReadyProgram], settings: ClientSettings
) -> GraphRunner:
    program = GraphRunner(eager, find, settings)
    if settings.mode == "swap":
        program.fetch_in_background()
    else:
        program.fetch()
    return program


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


# A fork waits for the lock, so that the child's copy is not one that nobody will ever release.
os.register_at_fork(
    before=_lock.acquire,
    after_in_parent=_lock.release,
    after_in_child=_reset_after_fork,
)
