"""From a wire graph to Prims, once for all targets of a request that decompose alike."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frontend_svc.cpu_work import CpuWork
from frontend_svc.events import EventStream
from frontend_svc.operators.ordering import is_sort
from frontend_svc.pipeline import lower_to_prims
from kernelfarm.errors import InvalidGraphError, MessageTooLargeError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import print_graph
from kernelfarm.targets import TargetFacts
from kernelfarm.wire import graph_from_proto, graph_to_proto

if TYPE_CHECKING:  # generated code stays behind its fence: here it is only a type
    from kernelfarm.v1.graph_pb2 import Graph as WireGraph

CLIENT_DIALECT = "aten"


@dataclass(frozen=True, slots=True)
class LoweredGraph:
    """A Prims graph as the optimizer takes it, the captured graph as text, each node's fate."""

    message: WireGraph
    aten: str
    report: str

    def texts_with(self, optimized: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """(name, text) of all program stages in order; both rooms' reports become one."""
        return (
            ("aten", self.aten),
            *((name, self._whole(name, text)) for name, text in optimized),
        )

    def _whole(self, name: str, text: str) -> str:
        return f"{self.report}\n{text}" if name == "report" else text


def import_graph(wire: WireGraph, max_nodes: int) -> Graph:
    """Decodes and checks what a client sent.

    Raises:
        MessageTooLargeError: more nodes than we take.
        UnsupportedVersionError: a contract version that we do not speak.
        InvalidGraphError: a rule is broken; the message says which, where, and what was expected.
    """
    if len(wire.nodes) > max_nodes:
        raise MessageTooLargeError(
            f"the graph has {len(wire.nodes)} nodes; this farm takes at most {max_nodes}"
        )
    graph = graph_from_proto(wire)
    if graph.dialect != CLIENT_DIALECT:
        raise InvalidGraphError(f"graph has dialect {graph.dialect!r}; expected {CLIENT_DIALECT!r}")
    return graph.without_hints()


class Lowering:
    """The decompositions of one request's graph, each begun by the first target that needs it."""

    def __init__(self, cpu: CpuWork, events: EventStream, *, fallback_random: bool) -> None:
        self._fallback_random = fallback_random
        self._cpu = cpu
        self._events = events
        self._tasks: dict[bool, asyncio.Task[LoweredGraph]] = {}

    async def result(self, graph: Graph, target: TargetFacts) -> LoweredGraph:
        """The Prims graph for a target; the graph is the same in every call.

        Raises:
            InvalidGraphError: an operator is used in a form that contradicts its definition.
        """
        sorts_any_row = target.sorts_any_row and any(is_sort(node.op) for node in graph.nodes)
        task = self._tasks.get(sorts_any_row)
        if task is None:
            work = self._lower(graph, sorts_any_row=sorts_any_row)
            task = self._tasks[sorts_any_row] = asyncio.create_task(work)
        return await asyncio.shield(task)  # a target that gives up leaves it to the others

    async def _lower(self, graph: Graph, *, sorts_any_row: bool) -> LoweredGraph:
        stage = self._events.stage("decompose")
        lowered = await self._cpu.run(
            _lower,
            graph,
            fallback_random=self._fallback_random,
            sorts_any_row=sorts_any_row,
        )
        nodes = len(graph.nodes)
        stage.tell(nodes, nodes)
        return lowered


def _lower(graph: Graph, *, fallback_random: bool, sorts_any_row: bool) -> LoweredGraph:
    lowered = lower_to_prims(graph, fallback_random=fallback_random, sorts_any_row=sorts_any_row)
    report = "\n".join(
        f"node {node.index} {node.op}: {node.outcome.value} ({node.detail})"
        for node in lowered.report
    )
    return LoweredGraph(graph_to_proto(lowered.graph), print_graph(graph), report)
