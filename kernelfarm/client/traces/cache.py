"""A warm start: what Dynamo gives is known by digest, so that nothing is traced again.

The first process that meets a graph traces it with AOT Autograd, and keeps on disk what that gave:
the captured graph, how it is called, and the program's key. The next process finds it by the digest
of the Dynamo graph and asks for the program by its key.

An entry of our own is believed because nobody but this user can write it, as with Python's own
`*.pyc`: it lies in the user's disk tier, and is refused if another user owns it or may write it. It
holds what its digest is over, and is refused if that is not what was asked for: a copy of another
graph's entry answers nothing.
Entries of others come by way of the farm and are believed by their signatures (`traces.shared`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd import runtime_wrappers
from torch._guards import TracingContext

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.disk.files import MAX_TRACE_BYTES, remove, write_whole
from kernelfarm.client.disk.sweep import TRACE
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs.graph_runner import BoxedFunction
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.traces.calling_convention import (
    CallingConvention,
    OutputConvention,
    calling_convention,
)
from kernelfarm.client.traces.digest import graph_parts
from kernelfarm.client.traces.entry import TraceEntry, entry_of, from_bytes, to_bytes
from kernelfarm.client.traces.shared import SharedTraces
from kernelfarm.client.traces.sizes import NotCoveredError, SizeTexts
from kernelfarm.digest import trace_digest
from kernelfarm.errors import KernelfarmError, ManifestMismatchError
from kernelfarm.private_files import read_private

_note_dynamic: Callable[[Any, set[int]], None] = next(
    getattr(runtime_wrappers, name)
    for name in ("mark_dynamo_propagated_dynamic_indices", "maybe_mark_dynamic_helper")
    if hasattr(runtime_wrappers, name)
)
"""Tells Dynamo, for graphs that follow, which extents of a result vary; torch 2.13 renamed it."""


@dataclass(frozen=True, slots=True)
class _TraceRequest:
    """A graph that may have an entry, and what was so before it was traced.

    `digest` is that of its parts (`traces.digest`), by which the entry is found.
    """

    digest: bytes
    path: Path | None
    shared: SharedTraces
    device: torch.device
    sizes: SizeTexts
    env_state: object
    guard_count: int


@dataclass(frozen=True, slots=True)
class CachedTrace:
    """What is known of a graph that was traced before, and what the farm sent of its program."""

    entry: TraceEntry
    captured: CapturedGraph
    prefetched: PrefetchedProgram | None = None


class TraceCache:
    """One graph of Dynamo: answered by an entry, or traced, and then kept as one."""

    def __init__(self, module: fx.GraphModule, access: FarmAccess, options: CompileOptions) -> None:
        self._module = module
        self._request: _TraceRequest | None = None
        try:
            self._request = _trace_request(module, access, options)
        except NotCoveredError as reason:
            counters.count(f"warm.traced.{reason}")

    def find(self) -> CachedTrace | None:
        """What was kept of this graph, here or by others; None if nothing that can be used.

        A publisher traces what the farm has not: what it kept itself may be older than an
        invalidation that nobody told it of, and must not come back under a new signature.
        """
        request = self._request
        if request is None:
            return None
        if request.shared.is_publisher:
            found = _shared_trace(request)
            if found is not None or request.shared.may_publish:
                return found
        own = (
            None
            if request.path is None
            else _own_trace(request.path, request.digest, request.device)
        )
        if own is not None or request.shared.is_publisher:
            return own
        return _shared_trace(request)

    def store(self, traced: fx.GraphModule, captured: CapturedGraph, key: bytes) -> None:
        """Keeps what AOT Autograd and capture made of the graph, if an entry can say it."""
        request = self._request
        if request is None or (request.path is None and not request.shared.may_publish):
            return
        try:
            convention = self._convention(request, traced)
            entry = entry_of(key, request.shared.parts, captured, convention, request.device)
        except NotCoveredError as reason:
            counters.count(f"warm.traced.{reason}")
            return
        content = to_bytes(entry)
        if request.path is not None:
            _keep(request.path, content)
        request.shared.publish(key, captured.graph, content)

    def callable_for(self, entry: TraceEntry, program: BoxedFunction) -> Callable[..., Any]:
        """What Dynamo calls: a program within what AOT Autograd would do around it."""
        called: Callable[..., Any] = torch._dynamo.disable(  # type: ignore[no-untyped-call] # torch's
            _wrapped(entry.convention, program), reason="a compiled graph"
        )
        return called

    def eager(self) -> BoxedFunction:
        """The graph as Dynamo captured it, where no tier has its program any more."""
        module = self._module

        def run(args: list[Any]) -> Sequence[Any]:
            results: Sequence[Any] = module(*args)
            return results

        return run

    def _convention(self, request: _TraceRequest, traced: fx.GraphModule) -> CallingConvention:
        context = TracingContext.try_get()
        if context is None or context.fw_metadata is None:
            raise NotCoveredError("a trace of its own")
        if request.sizes.env_state() != request.env_state:
            raise NotCoveredError("sizes that the trace learnt of")
        if len(context.guards_context.aotautograd_guards) != request.guard_count:
            raise NotCoveredError("arguments that are one memory")
        count = len(self._module.graph.find_nodes(op="placeholder"))
        return calling_convention(context.fw_metadata, traced, count)


def autocast_is_on() -> bool:
    """True if operators of this thread lower their types."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def without_autocast(run: Callable[..., Any]) -> Callable[..., Any]:
    """A program for callers under autocast: its types were fixed when it was traced."""

    def outside(args: Sequence[Any]) -> Any:
        with torch._C._DisableAutocast():
            return run(args)

    return outside


def _own_trace(path: Path, digest: bytes, device: torch.device) -> CachedTrace | None:
    """What an earlier process of this user kept of the graph with this digest."""
    try:
        entry = from_bytes(read_private(path, MAX_TRACE_BYTES))
        _check_answers(entry, digest, path)
        captured = entry.captured(device)
    except FileNotFoundError:
        counters.count("warm.misses")
        return None
    except OSError:
        counters.count("warm.unreadable")
        remove(path)
        return None
    except KernelfarmError as error:
        counters.count_refusal("warm", error)
        remove(path)
        return None
    with suppress(OSError):
        os.utime(path)  # entries that are not used go first
    counters.count("warm.hits")
    return CachedTrace(entry, captured)


def _check_answers(entry: TraceEntry, digest: bytes, path: Path) -> None:
    found = trace_digest(entry.parts)
    if found != digest:
        raise ManifestMismatchError(
            f"{path} holds the trace of another graph, {found.hex()[:16]}; expected"
            f" {digest.hex()[:16]}"
        )


def _shared_trace(request: _TraceRequest) -> CachedTrace | None:
    """What another client published."""
    found = request.shared.find()
    if found is None:
        return None
    try:
        captured = found.entry.captured(request.device)
    except KernelfarmError as error:  # an operator is not registered here
        counters.count_refusal("warm_farm", error)
        return None
    return CachedTrace(found.entry, captured, found.prefetched)


def _keep(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError:
        counters.count("warm.write_failures")
    else:
        counters.count("warm.stored")


def _trace_request(
    module: fx.GraphModule, access: FarmAccess, options: CompileOptions
) -> _TraceRequest:
    device = _device_of(module)
    target = device_support(device).target
    context = TracingContext.try_get()
    if context is None:
        raise NotCoveredError("no trace of Dynamo")
    parts, sizes = graph_parts(module)
    stated = ", ".join(f"{name}={value}" for name, value in options.pairs())
    parts |= {"target": target, "options": stated}
    digest = trace_digest(parts)
    name = digest.hex()
    disk = access.disk
    path = None if disk is None else disk.root / "traces" / name[:2] / f"{name}{TRACE}"
    shared = SharedTraces(access, parts, target, options)
    guards = len(context.guards_context.aotautograd_guards)
    return _TraceRequest(digest, path, shared, device, sizes, sizes.env_state(), guards)


def _device_of(module: fx.GraphModule) -> torch.device:
    values = [n.meta.get("example_value") for n in module.graph.find_nodes(op="placeholder")]
    devices = {
        value.device
        for value in values
        if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.dim())
    }
    if len(devices) > 1:
        raise NotCoveredError("several devices")
    return next(iter(devices), torch.device("cpu"))


def _wrapped(convention: CallingConvention, program: BoxedFunction) -> Callable[..., Any]:
    outputs, written = convention.outputs, convention.written
    is_plain = all(fact == OutputConvention() for fact in outputs)

    def call(*args: Any) -> Any:
        if written:
            torch.autograd.graph.increment_version([args[index] for index in written])
        has_grad = torch.is_grad_enabled()
        if has_grad:
            torch._C._set_grad_enabled(False)
        try:
            results = program(list(args))
            if is_plain:
                return results
            return [_given(f, r, args) for f, r in zip(outputs, results, strict=True)]
        finally:
            if has_grad:
                torch._C._set_grad_enabled(True)

    return call


def _given(fact: OutputConvention, result: Any, args: Sequence[Any]) -> Any:
    if fact.argument is not None:
        base = args[fact.argument]
        if fact.offset is None:
            result = base
        else:
            first = base.storage_offset() + fact.offset
            result = base.as_strided(result.size(), result.stride(), first)
    if fact.dynamic:
        _note_dynamic(result, set(fact.dynamic))
    return result
