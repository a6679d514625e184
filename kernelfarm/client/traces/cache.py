"""The trace cache: finds the trace of a Dynamo graph by its digest, so that it is not traced again.

The first process with a graph traces it with AOT Autograd, and stores the trace on disk: the
captured graph, its calling convention and its program key. A later process finds the trace by the
digest of the Dynamo graph, and requests the program by its key.

The client trusts a trace file because only this user can write it, like Python's `*.pyc` files: it
is in the user's disk tier, and is refused if another user owns it or may write it. It contains the
parts of its digest, and is refused if these differ from the graph's, so that a copy under another
name is not used. Traces of other clients come from the farm and are trusted by their signatures
(`traces.shared`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph, TracedModule
from kernelfarm.client.capture.short_trace import RecordedModule
from kernelfarm.client.disk.files import MAX_TRACE_BYTES, remove, write_whole
from kernelfarm.client.disk.sweep import TRACE
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.pytorch.private import (
    TracingContext,
)
from kernelfarm.client.traces.calling_convention import (
    CallingConvention,
    calling_convention,
    recorded_convention,
)
from kernelfarm.client.traces.digest import graph_parts
from kernelfarm.client.traces.entry import TraceEntry, entry_of, from_bytes, to_bytes
from kernelfarm.client.traces.shared import SharedTraces
from kernelfarm.client.traces.sizes import NotCoveredError, SizeTexts
from kernelfarm.digest import trace_digest
from kernelfarm.errors import KernelfarmError, ManifestMismatchError
from kernelfarm.private_files import read_private


@dataclass(frozen=True, slots=True)
class _TraceRequest:
    """The look-up of a graph's trace, and the tracing state before the graph is traced.

    `digest` is over the graph's parts (`traces.digest`). `path` is the trace file, None without a
    disk tier.
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
    """A cached trace, and the program that the farm sent with it, if it did."""

    entry: TraceEntry
    captured: CapturedGraph
    prefetched: PrefetchedProgram | None = None


class TraceCache:
    """The trace of one Dynamo graph: found in the cache, or stored there after tracing.

    `known` is the trace as soon as it is found or made. Until then `reason` says why there is none.
    With `is_needed`, the trace is made even if it cannot be stored.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        access: FarmAccess,
        options: CompileOptions,
        *,
        is_needed: bool = False,
    ) -> None:
        self.known: TraceEntry | None = None
        self.reason = "gradients"  # without gradients, tracing ends in `store`
        self._module = module
        self.is_needed = is_needed
        self._request: _TraceRequest | None = None
        try:
            self._request = _trace_request(module, access, options)
        except NotCoveredError as reason:
            self.reason = str(reason)
            counters.count(f"warm.traced.{reason}")

    def find(self) -> CachedTrace | None:
        """The graph's trace, from this user's disk or from the farm; None if there is none.

        A publisher does not use its own file if the farm has no trace: the file may be older than
        an invalidation that this client has not received, and must not be signed again.
        """
        found = None if self._request is None else self._found(self._request)
        if found is not None:
            self.known = found.entry
        return found

    def _found(self, request: _TraceRequest) -> CachedTrace | None:
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

    def store(self, traced: TracedModule, captured: CapturedGraph, key: bytes) -> None:
        """Stores and publishes the graph's trace, if an entry can express it."""
        request = self._request
        if request is None or not (
            self.is_needed or request.path is not None or request.shared.may_publish
        ):
            return
        try:
            self.known = self.entry(traced, captured, key)
        except NotCoveredError as reason:
            self.reason = str(reason)
            counters.count(f"warm.traced.{reason}")
            return
        content = to_bytes(self.known)
        if request.path is not None:
            _write(request.path, content)
        request.shared.publish(key, captured.graph, content)

    def entry(self, traced: TracedModule, captured: CapturedGraph, key: bytes) -> TraceEntry:
        """The graph's trace, while its tracing context is active.

        Raises:
            NotCoveredError: an entry cannot express it; the message is the reason.
        """
        request = self._request
        if request is None:
            raise NotCoveredError(self.reason)
        convention = self._convention(request, traced)
        return entry_of(key, request.shared.parts, captured, convention, request.device)

    @property
    def device(self) -> torch.device:
        """The device of the graph's tensors."""
        return torch.device("cpu") if self._request is None else self._request.device

    def _convention(self, request: _TraceRequest, traced: TracedModule) -> CallingConvention:
        context = TracingContext.try_get()
        if context is None:
            raise NotCoveredError("no metadata of the trace")
        if request.sizes.env_state() != request.env_state:
            raise NotCoveredError("guards on sizes that tracing added")
        if len(context.guards_context.aotautograd_guards) != request.guard_count:
            raise NotCoveredError("arguments that share memory")
        if isinstance(traced, RecordedModule):
            return recorded_convention(traced.graph)
        if context.fw_metadata is None:
            raise NotCoveredError("no metadata of the trace")
        count = len(self._module.graph.find_nodes(op="placeholder"))
        return calling_convention(context.fw_metadata, traced.graph, count)


def autocast_is_on() -> bool:
    """True if autocast is enabled in this thread."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _own_trace(path: Path, digest: bytes, device: torch.device) -> CachedTrace | None:
    """The trace that an earlier process of this user stored under this digest."""
    try:
        entry = from_bytes(read_private(path, MAX_TRACE_BYTES))
        _check_digest(entry, digest, path)
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
        os.utime(path)  # sweeps remove the least recently used files first
    counters.count("warm.hits")
    return CachedTrace(entry, captured)


def _check_digest(entry: TraceEntry, digest: bytes, path: Path) -> None:
    found = trace_digest(entry.parts)
    if found != digest:
        raise ManifestMismatchError(
            f"{path} has the trace of another graph, {found.hex()[:16]}; expected"
            f" {digest.hex()[:16]}"
        )


def _shared_trace(request: _TraceRequest) -> CachedTrace | None:
    """The trace that another client published."""
    found = request.shared.find()
    if found is None:
        return None
    try:
        captured = found.entry.captured(request.device)
    except KernelfarmError as error:  # an operator is not registered in this process
        counters.count_refusal("warm_farm", error)
        return None
    return CachedTrace(found.entry, captured, found.prefetched)


def _write(path: Path, content: bytes) -> None:
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
        raise NotCoveredError("no tracing context of Dynamo")
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
