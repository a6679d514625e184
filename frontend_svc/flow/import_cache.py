"""Decodes each request's graph once, and only if somebody must compile it.

Decoding, checking and hashing a graph is most of what a hit costs: 60 ms for a whole Llama. Program
keys are therefore remembered by the digest of the request's own bytes: equal bytes are equal
requests. What is not remembered is decoded once, in a child process, for all who ask at the same
time, and the work is ended if all of them give up.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from frontend_svc.flow.events import CompileJob
from frontend_svc.flow.failure_ttls import FailureTtls
from frontend_svc.flow.graph_job_client import GraphJobClient, GraphSource, ImportedGraph
from frontend_svc.flow.negative_cache import NegativeCache
from frontend_svc.flow.single_flight import SingleFlight
from kernelfarm.errors import CallerError, WorkBudgetError, WorkMemoryError, WorkTimeError

MAX_REQUESTS = 4096
"""Requests whose keys are remembered; each takes a few hundred bytes."""
MAX_COSTLY_ERRORS = 1024
"""Requests of which it is remembered that they cost too much; each takes a kilobyte."""
MAX_CALLER_ERRORS = 1024
CALLER_ERROR_TTL_S = 5.0
"""Other refused requests are remembered for a moment: who repeats one has it decoded once."""
BYTES_AT_ONCE = 1 << 20
"""Hashing a megabyte takes a millisecond: more is done in a thread."""

_COSTLY = (WorkBudgetError, WorkTimeError, WorkMemoryError)


class GraphImport:
    """One request's graph and its program keys by target; requests with equal bytes share it."""

    def __init__(self, job: CompileJob, digest: bytes, graph_jobs: GraphJobClient) -> None:
        self.source = GraphSource(job.graph, digest, job.tenant_cache.namespace_config.tenant)
        self._targets, self._options = job.targets, job.options
        self._graph_jobs = graph_jobs
        self._call: SingleFlight[ImportedGraph] = SingleFlight(self._imported)

    async def graph(self) -> ImportedGraph:
        """The graph's facts, found when they are first asked for.

        Raises:
            CallerError: it is wrong, see `graph_jobs.import_graph`.
        """
        return await self._call.result()

    async def _imported(self) -> ImportedGraph:
        return await self._graph_jobs.import_graph(self.source, self._targets, self._options)


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """What is remembered of a request: the number of its nodes, and its program keys by target."""

    nodes: int
    keys: dict[str, bytes]


class ImportCache:
    """The requests of one gateway. What one tenant sent makes nothing quicker for another."""

    def __init__(
        self,
        graph_jobs: GraphJobClient,
        failure_ttls: FailureTtls,
        most: int = MAX_REQUESTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._graph_jobs = graph_jobs
        self._failure_ttls = failure_ttls
        self._most = most
        self._summaries: OrderedDict[bytes, RequestSummary] = OrderedDict()
        self._costly_errors = NegativeCache(MAX_COSTLY_ERRORS, clock)
        # Apart: mistakes are easily made, and must not push out what was found at a cost.
        self._caller_errors = NegativeCache(MAX_CALLER_ERRORS, clock)
        self._active: WeakValueDictionary[bytes, GraphImport] = WeakValueDictionary()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._summaries

    async def of(self, job: CompileJob) -> tuple[GraphImport, RequestSummary]:
        """A request's import, and what is known of its graph.

        Raises:
            CallerError: the graph is wrong, see `graph_jobs.import_graph`.
            WorkTimeError, WorkMemoryError: it costs too much; this is told for a while.
        """
        if len(job.graph) > BYTES_AT_ONCE:
            digest = await asyncio.to_thread(request_digest, job)
        else:
            digest = request_digest(job)
        imported = self._active.get(digest)
        if imported is None:
            imported = self._active[digest] = GraphImport(job, digest, self._graph_jobs)
        summary = self._summaries.get(digest)
        if summary is None:
            summary = await self._summarize(digest, imported)
            self._summaries[digest] = summary
            while len(self._summaries) > self._most:
                self._summaries.popitem(last=False)
        else:
            self._summaries.move_to_end(digest)
        return imported, summary

    async def _summarize(self, digest: bytes, imported: GraphImport) -> RequestSummary:
        self._costly_errors.raise_cached(digest)
        self._caller_errors.raise_cached(digest)
        try:
            graph = await imported.graph()
        except _COSTLY as error:
            self._costly_errors.add(digest, error, self._failure_ttls.ttl_s(error))
            raise
        except CallerError as error:
            self._caller_errors.add(
                digest, error, min(CALLER_ERROR_TTL_S, self._failure_ttls.ttl_s(error))
            )
            raise
        return RequestSummary(graph.nodes, dict(graph.keys))


def request_digest(job: CompileJob) -> bytes:
    """SHA-256 over whose request it is and all of its bytes that select programs."""
    hasher = hashlib.sha256()
    options = (part for pair in job.options for part in pair)
    words = (job.tenant_cache.namespace, *job.targets, "", *options)
    for part in (*(word.encode() for word in words), job.graph):
        hasher.update(b"%d:" % len(part))
        hasher.update(part)
    return hasher.digest()
