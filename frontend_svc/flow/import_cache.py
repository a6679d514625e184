"""Caches program keys by the digest of a request's bytes, and decodes each graph once.

Decoding, checking and hashing a graph would be most of the cost of a hit: 60 ms for a whole Llama.
Equal bytes are equal requests, so their program keys are cached by the digest of the bytes. A graph
that is not in the cache is decoded in a child process, once for all concurrent requests; the work
is ended if all of them are cancelled.
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
from kernelfarm import spans
from kernelfarm.errors import CallerError, WorkBudgetError, WorkMemoryError, WorkTimeError
from kernelfarm.service.metrics.declarations import STAGE_SECONDS

MAX_REQUESTS = 4096
"""Requests whose keys are cached; each takes a few hundred bytes."""
MAX_COSTLY_ERRORS = 1024
"""Requests that cost too much and whose errors are cached; each takes a kilobyte."""
MAX_CALLER_ERRORS = 1024
CALLER_ERROR_TTL_S = 5.0
"""Errors of other refused requests are cached briefly: repeated requests are decoded once."""
BYTES_AT_ONCE = 1 << 20
"""Hashing a megabyte takes a millisecond: larger requests are hashed in a thread."""

_COSTLY = (WorkBudgetError, WorkTimeError, WorkMemoryError)


class GraphImport:
    """The import of one request's graph; concurrent requests with equal bytes share it."""

    def __init__(self, job: CompileJob, digest: bytes, graph_jobs: GraphJobClient) -> None:
        tenant = job.tenant_cache.namespace_config.tenant
        self.source = GraphSource(job.graph, digest, tenant, job.is_warm_up)
        self._targets, self._options = job.targets, job.options
        self._graph_jobs = graph_jobs
        self._call: SingleFlight[ImportedGraph] = SingleFlight(self._imported)

    async def graph(self) -> ImportedGraph:
        """The facts of the graph; the first call decodes it.

        Raises:
            CallerError: the graph is wrong, see `graph_jobs.import_graph`.
        """
        return await self._call.result()

    @spans.in_span("import")
    async def _imported(self) -> ImportedGraph:
        return await self._graph_jobs.import_graph(self.source, self._targets, self._options)


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """What is cached for a request: the number of its nodes, and its program keys by target."""

    nodes: int
    keys: dict[str, bytes]


class ImportCache:
    """The cache of one gateway; tenants share no entries, so that timing reveals nothing."""

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
        # A cache of its own: frequent simple mistakes must not evict errors that were costly to
        # find.
        self._caller_errors = NegativeCache(MAX_CALLER_ERRORS, clock)
        # A request of a user does not share the import of a warm-up, which may wait for long.
        self._active: WeakValueDictionary[tuple[bytes, bool], GraphImport] = WeakValueDictionary()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._summaries

    async def of(self, job: CompileJob) -> tuple[GraphImport, RequestSummary]:
        """A request's import, and the summary of its graph.

        Raises:
            CallerError: the graph is wrong, see `graph_jobs.import_graph`.
            WorkTimeError, WorkMemoryError: the graph costs too much; the error is cached.
        """
        if len(job.graph) > BYTES_AT_ONCE:
            digest = await asyncio.to_thread(request_digest, job)
        else:
            digest = request_digest(job)
        name = (digest, job.is_warm_up)
        imported = self._active.get(name)
        if imported is None:
            imported = self._active[name] = GraphImport(job, digest, self._graph_jobs)
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
        began_s = time.monotonic()
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
        STAGE_SECONDS.labels("import", "").observe(time.monotonic() - began_s)
        return RequestSummary(graph.nodes, dict(graph.keys))


def request_digest(job: CompileJob) -> bytes:
    """SHA-256 over the namespace and everything in a request that selects programs."""
    hasher = hashlib.sha256()
    options = (part for pair in job.options.key_pairs() for part in pair)
    words = (job.tenant_cache.namespace, *job.targets, "", *options)
    for part in (*(word.encode() for word in words), job.graph):
        hasher.update(b"%d:" % len(part))
        hasher.update(part)
    return hasher.digest()
