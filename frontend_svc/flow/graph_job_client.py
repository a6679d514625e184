"""Calls the frontend's child processes, which run `graph_jobs.py`.

A client's graph stays bytes in the frontend: it is parsed in a child process, which can be killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from frontend_svc.flow.compile_options import CompileOptions
from frontend_svc.settings import FrontendSettings
from kernelfarm.service.process_pool.pool import ProcessPool, WorkItem


@dataclass(frozen=True, slots=True)
class GraphSource:
    """A graph as a client sent it, and its tenant; `digest` names the request in children.

    The work on it may be a warm-up, for which no user waits.
    """

    message: bytes | memoryview = field(repr=False)
    digest: bytes
    tenant: str
    is_warm_up: bool = False


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """Facts about a graph; `passes` are those of its decomposition.

    `keys` are its program keys by target, `shared_parts` the parts that all of these keys share.
    """

    nodes: int
    ops: tuple[str, ...]
    passes: tuple[str, ...]
    has_sorts: bool
    keys: Mapping[str, bytes]
    shared_parts: Mapping[str, str]

    def key_parts(self, target: str) -> dict[str, str]:
        """What the program key for a target is made of, so that later misses can be explained."""
        return {**self.shared_parts, "target": target}


@dataclass(frozen=True, slots=True)
class DecomposedGraph:
    """A serialized Prims graph, the captured graph as text, and the outcome of each node."""

    message: bytes = field(repr=False)
    aten: str
    report: str

    def texts_with(
        self, optimized: tuple[tuple[str, str], ...], notes: tuple[str, ...] = ()
    ) -> tuple[tuple[str, str], ...]:
        """(name, text) of all stages of the program in order; reports and notes become one."""
        return (
            ("aten", self.aten),
            *((name, self._merged(name, text, notes)) for name, text in optimized),
        )

    def _merged(self, name: str, text: str, notes: tuple[str, ...]) -> str:
        return "\n".join((self.report, text, *notes)) if name == "report" else text


class GraphJobClient:
    """Runs jobs in the child processes.

    If a method is cancelled, its work is ended. Every method raises `CallerError` if the graph is
    wrong, and `WorkTimeError`, `WorkMemoryError`, `WorkProcessError` or `FarmFullError` if the
    work was ended or refused.
    """

    def __init__(self, pool: ProcessPool, settings: FrontendSettings) -> None:
        self._pool = pool
        self._settings = settings

    async def import_graph(
        self, source: GraphSource, targets: tuple[str, ...], options: CompileOptions
    ) -> ImportedGraph:
        """Decodes and checks a graph, and computes its program keys."""
        facts_text, *keys = await self._run(
            "import", source, targets=targets, options=asdict(options)
        )
        facts = json.loads(facts_text)
        return ImportedGraph(
            nodes=facts["nodes"],
            ops=tuple(facts["ops"]),
            passes=tuple(facts["passes"]),
            has_sorts=facts["sorts"],
            keys=dict(zip(targets, keys, strict=True)),
            shared_parts=facts["key_parts"],
        )

    async def decompose(
        self,
        source: GraphSource,
        *,
        fallback_random: bool,
        max_sorted_elems: int | None,
        needs_fixed_order: bool,
    ) -> DecomposedGraph:
        """Decomposes a graph to Prims; the arguments are those of `decompose_to_prims`."""
        message, aten, report = await self._run(
            "decompose",
            source,
            fallback_random=fallback_random,
            max_sorted_elems=max_sorted_elems,
            needs_fixed_order=needs_fixed_order,
        )
        return DecomposedGraph(message, aten.decode(), report.decode())

    async def explain(
        self, source: GraphSource, target: str, options: CompileOptions
    ) -> tuple[bytes, dict[str, str]]:
        """A program's key, and what it is made of."""
        imported = await self.import_graph(source, (target,), options)
        return imported.keys[target], imported.key_parts(target)

    async def kernel_keys(
        self, optimized: bytes, target: str, request: GraphSource
    ) -> tuple[bytes, ...]:
        """The keys of all kernels in a serialized optimizer response to a request."""
        source = GraphSource(optimized, b"", request.tenant, request.is_warm_up)
        return tuple(await self._run("kernel_keys", source, target=target))

    async def _run(self, name: str, source: GraphSource, **facts: Any) -> list[bytes]:
        facts["digest"] = source.digest.hex()
        facts["max_nodes"] = self._settings.max_graph_nodes
        facts["max_steps"] = self._settings.max_work_steps
        parts = (source.message, json.dumps(facts).encode())
        return await self._pool.run(
            WorkItem(name, parts, source.tenant, source.digest, source.is_warm_up)
        )
