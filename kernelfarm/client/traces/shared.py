"""Traces that clients share through the farm, so that a new machine traces nothing.

See `signed_entries` for who is trusted. One look-up returns a trace together with its program.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.caller_facts import facts_of
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.traces.entry import TraceEntry, from_bytes
from kernelfarm.client.traces.signed_entries import (
    SharedEntry,
    SignedEntries,
    TraceNotPublishedWarning,
)
from kernelfarm.digest import program_key, trace_digest
from kernelfarm.errors import KernelfarmError, ManifestMismatchError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.guards import CallerFacts
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import facts_to_proto

__all__ = ["SharedTrace", "SharedTraces", "TraceNotPublishedWarning", "trace_content"]

SharedTrace = SharedEntry[TraceEntry]

TRACE_COUNTERS = {
    "memory_hit": "warm.memory.hits",
    "disk_hit": "warm.disk.hits",
    "farm_hit": "warm.farm.hits",
    "miss": "warm.farm.misses",
    "miss_reason": "warm.farm.misses.*",
    "stale": "warm.farm.stale",
    "failure": "warm.farm.failures.*",
    "published": "warm.farm.published",
    "not_published": "warm.farm.not_published.*",
}


def trace_content(key: bytes, graph: Graph, entry: bytes) -> bytes:
    """The content of a trace as the farm stores it: `kernelfarm.v1.Trace`, serialized."""
    facts = facts_to_proto(CallerFacts(inputs=facts_of(graph).inputs))
    trace = pb.Trace(program_key=key, facts=facts, entry=entry)
    return trace.SerializeToString(deterministic=True)


class SharedTraces(SignedEntries[TraceEntry]):
    """Finds and publishes the shared trace of one graph.

    `parts` are the parts of the graph's digest: the Dynamo graph, the target and the options.
    """

    counter_names = TRACE_COUNTERS

    def __init__(
        self, access: FarmAccess, parts: Mapping[str, str], target: str, options: CompileOptions
    ) -> None:
        super().__init__(access, parts)
        self._target = target
        self._options = options

    def publish(self, key: bytes, graph: Graph, entry: bytes) -> None:
        """Publishes a new trace, if this client may and the farm reported a miss.

        Raises:
            CallerError: the private key cannot be read.
        """
        if self.may_publish:
            self._publish(trace_content(key, graph, entry))

    def _decoded(self, trace: pb.Trace) -> TraceEntry:
        entry = from_bytes(trace.entry)
        if trace_digest(entry.parts) != self.digest:
            raise ManifestMismatchError(
                f"expected the trace of graph {self.digest.hex()[:16]}, got that of"
                f" {trace_digest(entry.parts).hex()[:16]}"
            )
        key = program_key(entry.graph, self._target, self._options.pairs())
        if key != entry.key or key != trace.program_key:
            raise ManifestMismatchError(
                f"the trace of graph {self.digest.hex()[:16]} names program"
                f" {entry.key.hex()[:16]}; expected {key.hex()[:16]}"
            )
        return entry

    def _note_refusal(self, error: KernelfarmError) -> None:
        counters.count_refusal("warm_farm", error)
