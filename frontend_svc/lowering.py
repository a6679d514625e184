"""From a wire graph to Prims, once for all targets of a request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frontend_svc.cpu_work import CpuWork
from frontend_svc.events import EventStream
from frontend_svc.pipeline import lower_to_prims
from kernelfarm.errors import InvalidGraphError, MessageTooLargeError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import print_graph
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
    return graph


class Lowering:
    """The decomposition of one request's graph: begun by the first target that misses."""

    def __init__(self, graph: Graph, cpu: CpuWork, events: EventStream) -> None:
        self._graph = graph
        self._cpu = cpu
        self._events = events
        self._task: asyncio.Task[LoweredGraph] | None = None

    async def result(self) -> LoweredGraph:
        """The Prims graph.

        Raises:
            InvalidGraphError: an operator is used in a form that contradicts its definition.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._lower())
        return await asyncio.shield(self._task)  # a target that gives up leaves it to the others

    async def _lower(self) -> LoweredGraph:
        stage = self._events.stage("decompose")
        lowered = await self._cpu.run(_lower, self._graph)
        nodes = len(self._graph.nodes)
        stage.tell(nodes, nodes)
        return lowered


def _lower(graph: Graph) -> LoweredGraph:
    lowered = lower_to_prims(graph)
    report = "\n".join(
        f"node {node.index} {node.op}: {node.outcome.value} ({node.detail})"
        for node in lowered.report
    )
    return LoweredGraph(graph_to_proto(lowered.graph), print_graph(graph), report)
