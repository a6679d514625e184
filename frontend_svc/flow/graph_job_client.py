"""The work of the frontend's child processes, as the frontend asks for it; see `graph_jobs.py`.

A client's graph stays bytes in the frontend: it is parsed in a child, which can be ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frontend_svc.settings import FrontendSettings
from kernelfarm.service.process_pool.pool import ProcessPool, WorkItem

Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GraphSource:
    """A graph as a client sent it, and whose it is; `digest` names the request in children."""

    message: bytes | memoryview = field(repr=False)
    digest: bytes
    tenant: str


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """What the frontend must know of a graph; `passes` are those of its decomposition."""

    nodes: int
    ops: tuple[str, ...]
    passes: tuple[str, ...]
    has_sorts: bool
    keys: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class DecomposedGraph:
    """A Prims graph as the optimizer takes it, the captured graph as text, each node's fate."""

    message: bytes = field(repr=False)
    aten: str
    report: str

    def texts_with(self, optimized: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """(name, text) of all program stages in order; both rooms' reports become one."""
        return (
            ("aten", self.aten),
            *((name, self._merged(name, text)) for name, text in optimized),
        )

    def _merged(self, name: str, text: str) -> str:
        return f"{self.report}\n{text}" if name == "report" else text


class GraphJobClient:
    """Asks the child processes.

    Each method ends its work when it is cancelled, and raises what is wrong with the graph
    (`CallerError`), or what became of the work: `WorkTimeError`, `WorkMemoryError`,
    `WorkProcessError`, `FarmFullError`.
    """

    def __init__(self, pool: ProcessPool, settings: FrontendSettings) -> None:
        self._pool = pool
        self._settings = settings

    async def import_graph(
        self, source: GraphSource, targets: tuple[str, ...], options: Options
    ) -> ImportedGraph:
        """Decodes and checks a graph; its program keys."""
        facts_text, *keys = await self._run("import", source, targets=targets, options=options)
        facts = json.loads(facts_text)
        return ImportedGraph(
            nodes=facts["nodes"],
            ops=tuple(facts["ops"]),
            passes=tuple(facts["passes"]),
            has_sorts=facts["sorts"],
            keys=dict(zip(targets, keys, strict=True)),
        )

    async def decompose(
        self, source: GraphSource, *, fallback_random: bool, max_sorted_elems: int | None
    ) -> DecomposedGraph:
        """Decomposes a graph to Prims."""
        message, aten, report = await self._run(
            "lower", source, fallback_random=fallback_random, max_sorted_elems=max_sorted_elems
        )
        return DecomposedGraph(message, aten.decode(), report.decode())

    async def parts(self, source: GraphSource, target: str, options: Options) -> dict[str, str]:
        """What a program's key is made of, by which later misses are explained."""
        (parts,) = await self._run("parts", source, target=target, options=options)
        return _texts(parts)

    async def explain(
        self, source: GraphSource, target: str, options: Options
    ) -> tuple[bytes, dict[str, str]]:
        """A program's key, and what it is made of."""
        key, parts = await self._run("explain", source, target=target, options=options)
        return key, _texts(parts)

    async def kernel_keys(self, optimized: bytes, target: str, tenant: str) -> tuple[bytes, ...]:
        """The keys of all kernels in an optimizer's response."""
        source = GraphSource(optimized, b"", tenant)
        return tuple(await self._run("kernel_keys", source, target=target))

    async def _run(self, name: str, source: GraphSource, **facts: Any) -> list[bytes]:
        facts["digest"] = source.digest.hex()
        facts["max_nodes"] = self._settings.max_graph_nodes
        facts["max_steps"] = self._settings.max_work_steps
        parts = (source.message, json.dumps(facts).encode())
        return await self._pool.run(WorkItem(name, parts, source.tenant, source.digest))


def _texts(data: bytes) -> dict[str, str]:
    return {str(name): str(text) for name, text in json.loads(data).items()}
