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
from frontend_svc.flow.failure_ttls import FailureTimes
from frontend_svc.flow.graph_job_client import CpuWork, GraphSource, ImportedGraph
from frontend_svc.flow.negative_cache import KnownErrors
from frontend_svc.flow.single_flight import SharedCall
from kernelfarm.errors import CallerError, WorkBudgetError, WorkMemoryError, WorkTimeError

KNOWN_REQUESTS = 4096
"""Requests whose keys are remembered; each takes a few hundred bytes."""
KNOWN_FAILURES = 1024
"""Requests of which it is remembered that they cost too much; each takes a kilobyte."""
KNOWN_MISTAKES = 1024
MISTAKE_S = 5.0
"""Other refused requests are remembered for a moment: who repeats one has it decoded once."""
BYTES_AT_ONCE = 1 << 20
"""Hashing a megabyte takes a millisecond: more is done in a thread."""

_COSTLY = (WorkBudgetError, WorkTimeError, WorkMemoryError)


class Import:
    """One request's graph and its program keys by target; requests with equal bytes share it."""

    def __init__(self, job: CompileJob, digest: bytes, cpu: CpuWork) -> None:
        self.source = GraphSource(job.graph, digest, job.part.partition.tenant)
        self._targets, self._options = job.targets, job.options
        self._cpu = cpu
        self._call: SharedCall[ImportedGraph] = SharedCall(self._imported)

    async def graph(self) -> ImportedGraph:
        """The graph's facts, found when they are first asked for.

        Raises:
            CallerError: it is wrong, see `graph_jobs.import_graph`.
        """
        return await self._call.result()

    async def _imported(self) -> ImportedGraph:
        return await self._cpu.import_graph(self.source, self._targets, self._options)


@dataclass(frozen=True, slots=True)
class KnownGraph:
    """What is remembered of a request: the number of its nodes, and its program keys by target."""

    nodes: int
    keys: dict[str, bytes]


class Imports:
    """The requests of one gateway. What one tenant sent makes nothing quicker for another."""

    def __init__(
        self,
        cpu: CpuWork,
        times: FailureTimes,
        most: int = KNOWN_REQUESTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu = cpu
        self._times = times
        self._most = most
        self._known: OrderedDict[bytes, KnownGraph] = OrderedDict()
        self._failed = KnownErrors(KNOWN_FAILURES, clock)
        # Apart: mistakes are easily made, and must not push out what was found at a cost.
        self._mistakes = KnownErrors(KNOWN_MISTAKES, clock)
        self._living: WeakValueDictionary[bytes, Import] = WeakValueDictionary()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    async def of(self, job: CompileJob) -> tuple[Import, KnownGraph]:
        """A request's import, and what is known of its graph.

        Raises:
            CallerError: the graph is wrong, see `graph_jobs.import_graph`.
            WorkTimeError, WorkMemoryError: it costs too much; this is told for a while.
        """
        if len(job.graph) > BYTES_AT_ONCE:
            digest = await asyncio.to_thread(request_digest, job)
        else:
            digest = request_digest(job)
        imported = self._living.get(digest)
        if imported is None:
            imported = self._living[digest] = Import(job, digest, self._cpu)
        known = self._known.get(digest)
        if known is None:
            known = await self._looked_at(digest, imported)
            self._known[digest] = known
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(digest)
        return imported, known

    async def _looked_at(self, digest: bytes, imported: Import) -> KnownGraph:
        self._failed.raise_known(digest)
        self._mistakes.raise_known(digest)
        try:
            graph = await imported.graph()
        except _COSTLY as error:
            self._failed.add(digest, error, self._times.ttl_s(error))
            raise
        except CallerError as error:
            self._mistakes.add(digest, error, min(MISTAKE_S, self._times.ttl_s(error)))
            raise
        return KnownGraph(graph.nodes, dict(graph.keys))


def request_digest(job: CompileJob) -> bytes:
    """SHA-256 over whose request it is and all of its bytes that select programs."""
    hasher = hashlib.sha256()
    options = (part for pair in job.options for part in pair)
    words = (job.part.namespace, *job.targets, "", *options)
    for part in (*(word.encode() for word in words), job.graph):
        hasher.update(b"%d:" % len(part))
        hasher.update(part)
    return hasher.digest()
