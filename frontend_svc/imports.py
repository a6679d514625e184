"""Decodes each request's graph once, and only if somebody must compile it.

Decoding, checking and hashing a graph is most of what a hit costs: 60 ms for a whole Llama. Program
keys are therefore remembered by the digest of the request's own bytes: equal bytes are equal
requests. What is not remembered is decoded once for all who ask at the same time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from weakref import WeakValueDictionary

from frontend_svc.cpu_work import CpuWork
from frontend_svc.events import CompileJob
from frontend_svc.lowering import import_graph
from kernelfarm.digest import program_keys
from kernelfarm.ir.graph_ir import Graph

KNOWN_REQUESTS = 4096
"""Requests whose keys are remembered; each takes a few hundred bytes."""
# Serializing and hashing 1,000 nodes takes 0.3 ms: more is done in a thread.
_NODES_AT_ONCE = 1000

ProgramKeys = Mapping[str, bytes]


class Import:
    """One request's graph and its program keys by target; requests with equal bytes share it."""

    def __init__(self, job: CompileJob, cpu: CpuWork, max_nodes: int) -> None:
        self._job = job
        self._cpu = cpu
        self._max_nodes = max_nodes
        self._task: asyncio.Task[tuple[Graph, ProgramKeys]] | None = None

    async def graph(self) -> Graph:
        """The graph, decoded when it is first asked for.

        Raises:
            CallerError: it is wrong, see `import_graph`.
        """
        return (await self._decoded())[0]

    async def keys(self) -> ProgramKeys:
        """As `graph`, the program keys."""
        return (await self._decoded())[1]

    async def _decoded(self) -> tuple[Graph, ProgramKeys]:
        if self._task is None:
            work = self._cpu.run(_decode, self._job, self._max_nodes)
            self._task = asyncio.create_task(work)
            self._task.add_done_callback(_forget_error)
        return await asyncio.shield(self._task)  # one that gives up leaves it to the others


class Imports:
    """The requests of one gateway. What one tenant sent makes nothing quicker for another."""

    def __init__(self, cpu: CpuWork, max_nodes: int, most: int = KNOWN_REQUESTS) -> None:
        self._cpu = cpu
        self._max_nodes = max_nodes
        self._most = most
        self._known: OrderedDict[bytes, ProgramKeys] = OrderedDict()
        self._living: WeakValueDictionary[bytes, Import] = WeakValueDictionary()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    async def of(self, job: CompileJob) -> tuple[Import, ProgramKeys]:
        """A request's import, and its program keys by target.

        Raises:
            CallerError: the graph is wrong, see `import_graph`.
        """
        if len(job.graph.nodes) > _NODES_AT_ONCE:
            digest = await self._cpu.run(request_digest, job)
        else:
            digest = request_digest(job)
        imported = self._living.get(digest)
        if imported is None:
            imported = self._living[digest] = Import(job, self._cpu, self._max_nodes)
        keys = self._known.get(digest)
        if keys is None:
            keys = self._known[digest] = await imported.keys()
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(digest)
        return imported, keys


def request_digest(job: CompileJob) -> bytes:
    """SHA-256 over whose request it is and all of its bytes that select programs."""
    hasher = hashlib.sha256()
    options = (part for pair in job.options for part in pair)
    words = (job.part.namespace, *job.targets, "", *options)
    for part in (
        *(word.encode() for word in words),
        job.graph.SerializeToString(deterministic=True),
    ):
        hasher.update(b"%d:" % len(part))
        hasher.update(part)
    return hasher.digest()


def _decode(job: CompileJob, max_nodes: int) -> tuple[Graph, ProgramKeys]:
    graph = import_graph(job.graph, max_nodes)
    return graph, program_keys(graph, job.targets, job.options)


def _forget_error(task: asyncio.Task[tuple[Graph, ProgramKeys]]) -> None:
    """Those who wait hear of it; if none is left, nobody needs to."""
    if not task.cancelled():
        task.exception()
