"""Adds the graphs that this backend compiles to the package that PyTorch precompiles.

A graph without gradients is stored as its trace (`content`): the function needs nothing of AOT
Autograd. All others are stored by AOT Autograd, with its wrappers (`graph_code`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import fx

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph, TracedModule, UnsupportedGraphError
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.precompiled.artifacts import (
    SerializableGraph,
    WrappedGraph,
    record,
    record_order,
)
from kernelfarm.client.precompiled.content import PrecompiledGraph, version
from kernelfarm.client.precompiled.graph_code import GraphCode
from kernelfarm.client.programs.finder import BackendOptions
from kernelfarm.client.programs.graph_runner import BoxedFunction
from kernelfarm.client.programs.traced_facts import static_inputs
from kernelfarm.client.pytorch.private import SerializableAOTDispatchCompiler
from kernelfarm.client.pytorch.private.packages import is_caching_precompile, storing_graphs
from kernelfarm.client.traces.cache import TraceCache, autocast_is_on
from kernelfarm.client.traces.entry import TraceEntry, graph_entry, to_bytes
from kernelfarm.client.traces.sizes import NotCoveredError


class Packaging:
    """One Dynamo graph of a package; `name` is its name there.

    `stated` are the settings that `torch.compile` was called with.
    """

    def __init__(
        self,
        name: str,
        order: InputOrder,
        cache: TraceCache,
        options: BackendOptions,
        stated: Mapping[str, Any],
    ) -> None:
        self._name = name
        self._order = order
        self._cache = cache
        self._options = options
        self._stated = stated
        self._device = cache.device.type
        self._noted: dict[TracedModule, TraceEntry] = {}
        self._reason = "an operator that kernelfarm cannot express"
        self._contents: list[bytes] = []

    def storing_graphs(self) -> AbstractContextManager[None]:
        """AOT Autograd stores the graphs that it traces in this block."""
        stated = (*self._options.compiled.pairs(), *sorted(self._stated.items()))
        return storing_graphs(f"kernelfarm {version()} {stated}")

    def storing(self, compiler: Callable[..., Any]) -> Any:
        """A compiler whose graphs AOT Autograd stores."""
        return SerializableAOTDispatchCompiler(GraphCode, compiler)

    def note(self, gm: TracedModule, captured: CapturedGraph, key: bytes, target: str) -> None:
        """Takes a functional graph and its program key."""
        self._device = captured.device.type
        count = len(gm.graph.find_nodes(op="placeholder"))
        try:
            self._noted[gm] = graph_entry(key, target, captured, count)
        except NotCoveredError as reason:
            self._reason = str(reason)

    def stored(
        self, gm: fx.GraphModule, boxed: BoxedFunction, static: tuple[int, ...] | None
    ) -> GraphCode:
        """A compiled functional graph as AOT Autograd stores it; `static` as in the package."""
        entry = self._noted.pop(gm, None)
        if entry is None:
            return GraphCode(None, boxed, self._reason)
        content = self._content(entry, static, leaves_autocast=False)
        self._contents.append(content)
        return GraphCode(content, boxed)

    def packed(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled graph as PyTorch takes it for its package.

        Raises:
            UnsupportedGraphError: (`aot_compile`) the graph cannot be stored.
        """
        entry, is_cached = self._cache.known, is_caching_precompile()
        called = self._order.called_as_before(compiled)
        if entry is not None:
            counters.count("precompiled.made")
            content = self._content(
                entry,
                static_inputs(self._order.module),
                leaves_autocast=autocast_is_on(),
                positions=self._order.positions,
            )
            if not is_cached:
                return SerializableGraph(content, called)
            record(self._name, content)
            return called
        if is_cached:  # PyTorch leaves a graph that is not stored out of its package
            is_stored = record_order(self._name, self._order.positions)
            counters.count("precompiled.wrapped" if is_stored else "precompiled.not_covered")
            return called
        if getattr(compiled, "serialize", None) is None:
            counters.count("precompiled.not_covered")
            raise UnsupportedGraphError(f"kernelfarm cannot precompile a graph with {self._reason}")
        counters.count("precompiled.wrapped")
        return WrappedGraph(compiled, self._order.positions, tuple(self._contents))

    def _content(
        self,
        entry: TraceEntry,
        static: tuple[int, ...] | None,
        *,
        leaves_autocast: bool,
        positions: tuple[int, ...] | None = None,
    ) -> bytes:
        return PrecompiledGraph(
            to_bytes(entry),
            device=self._device,
            positions=positions,
            static=static,
            stated=self._stated,
            is_deterministic=self._options.compiled.is_deterministic,
            fallback_random=self._options.compiled.fallback_random,
            products=self._options.compiled.products.value,
            leaves_autocast=leaves_autocast,
        ).to_bytes()
