"""Decomposes the graph of a request, once for all targets that decompose alike."""

from __future__ import annotations

from functools import partial

from frontend_svc.flow.compile_options import CompileOptions
from frontend_svc.flow.events import EventStream
from frontend_svc.flow.graph_job_client import DecomposedGraph, GraphJobClient
from frontend_svc.flow.import_cache import GraphImport
from frontend_svc.flow.single_flight import SingleFlight
from kernelfarm import spans
from kernelfarm.targets import TargetFacts


class SharedDecomposition:
    """The decompositions of one request's graph; the first target that needs one starts it."""

    def __init__(
        self,
        graph_jobs: GraphJobClient,
        events: EventStream,
        imported: GraphImport,
        *,
        options: CompileOptions,
    ) -> None:
        self._options = options
        self._graph_jobs = graph_jobs
        self._events = events
        self._imported = imported
        self._calls: dict[tuple[int | None, bool], SingleFlight[DecomposedGraph]] = {}

    async def result(self, target: TargetFacts) -> DecomposedGraph:
        """The Prims graph for a target.

        Raises:
            InvalidGraphError: an operator is used in a form that contradicts its definition.
        """
        has_sorts = (await self._imported.graph()).has_sorts
        max_sorted_elems = target.max_sorted_elems if has_sorts else None
        needs_fixed_order = self._options.is_deterministic and not target.updates_in_order
        call = self._calls.get((max_sorted_elems, needs_fixed_order))
        if call is None:
            call = SingleFlight(
                partial(
                    self._decompose,
                    max_sorted_elems=max_sorted_elems,
                    needs_fixed_order=needs_fixed_order,
                )
            )
            self._calls[max_sorted_elems, needs_fixed_order] = call
        return await call.result()

    @spans.in_span("decompose")
    async def _decompose(
        self, *, max_sorted_elems: int | None, needs_fixed_order: bool
    ) -> DecomposedGraph:
        stage = self._events.stage("decompose")
        decomposed = await self._graph_jobs.decompose(
            self._imported.source,
            fallback_random=self._options.fallback_random,
            max_sorted_elems=max_sorted_elems,
            needs_fixed_order=needs_fixed_order,
        )
        nodes = (await self._imported.graph()).nodes
        stage.finish(nodes)
        return decomposed
