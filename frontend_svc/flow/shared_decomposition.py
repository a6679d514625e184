"""Decomposes the graph of a request, once for all targets that decompose alike."""

from __future__ import annotations

from functools import partial

from frontend_svc.flow.events import EventStream
from frontend_svc.flow.graph_job_client import DecomposedGraph, GraphJobClient
from frontend_svc.flow.import_cache import GraphImport
from frontend_svc.flow.single_flight import SingleFlight
from kernelfarm.targets import TargetFacts


class SharedDecomposition:
    """The decompositions of one request's graph; the first target that needs one starts it."""

    def __init__(
        self,
        graph_jobs: GraphJobClient,
        events: EventStream,
        imported: GraphImport,
        *,
        fallback_random: bool,
    ) -> None:
        self._fallback_random = fallback_random
        self._graph_jobs = graph_jobs
        self._events = events
        self._imported = imported
        self._calls: dict[bool, SingleFlight[DecomposedGraph]] = {}

    async def result(self, target: TargetFacts) -> DecomposedGraph:
        """The Prims graph for a target.

        Raises:
            InvalidGraphError: an operator is used in a form that contradicts its definition.
        """
        sorts_any_row = target.sorts_any_row and (await self._imported.graph()).has_sorts
        call = self._calls.get(sorts_any_row)
        if call is None:
            call = SingleFlight(partial(self._decompose, sorts_any_row=sorts_any_row))
            self._calls[sorts_any_row] = call
        return await call.result()

    async def _decompose(self, *, sorts_any_row: bool) -> DecomposedGraph:
        stage = self._events.stage("decompose")
        decomposed = await self._graph_jobs.decompose(
            self._imported.source,
            fallback_random=self._fallback_random,
            sorts_any_row=sorts_any_row,
        )
        nodes = (await self._imported.graph()).nodes
        stage.report(nodes, nodes)
        return decomposed
