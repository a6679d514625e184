"""Traces that clients share through the farm, so that a new machine traces nothing.

The farm cannot check a trace, and the author of a trace decides what its readers run. So a client
uses a shared trace only if a trusted key for traces signed it, for the client's namespace and the
graph's digest, and if it is complete and has not expired. The same holds for traces in memory and
on disk, because keys may be revoked. Only a client with such a private key
(`KERNELFARM_TRACE_KEY_FILE`) publishes traces.

One look-up returns a trace together with its program.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.caller_facts import environment_facts, facts_of
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.disk_lookup import EntryReader, find_on_disk, store_on_disk
from kernelfarm.client.farm.invalidation_state import InvalidationState, KnownAtRequest
from kernelfarm.client.farm.recent_traces import StoredTrace
from kernelfarm.client.farm.trace_client import TraceClient, TraceLookup
from kernelfarm.client.programs.kernels import loaded_digests
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.traces.entry import TraceEntry, from_bytes
from kernelfarm.client.traces.publication import Epoch, PublishedTrace, publish_trace
from kernelfarm.digest import program_key, trace_digest
from kernelfarm.errors import (
    DeadlineError,
    IntegrityError,
    KernelfarmError,
    MalformedMessageError,
    ManifestMismatchError,
    UnavailableError,
)
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.guards import CallerFacts
from kernelfarm.signing import CacheAddress, Manifest, Signer, Space, check_content
from kernelfarm.signing.key_files import read_signer
from kernelfarm.v1 import cache_service_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import facts_to_proto, manifest_from_proto

_TIMEOUT_S = 10.0
_SWAP_TIMEOUT_S = 1.0
"""Tracing takes no longer than these; in mode `swap` the caller must not wait for the farm."""
_PUT_TIMEOUT_S = 10.0


class TraceNotPublishedWarning(UserWarning):
    """The farm refused a trace that this client published."""


def trace_content(key: bytes, graph: Graph, entry: bytes) -> bytes:
    """The content of a trace as the farm stores it: `kernelfarm.v1.Trace`, serialized."""
    facts = facts_to_proto(CallerFacts(inputs=facts_of(graph).inputs))
    trace = pb.Trace(program_key=key, facts=facts, entry=entry)
    return trace.SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True)
class SharedTrace:
    """A verified trace, and the program that the farm sent with it, if it did."""

    entry: TraceEntry
    prefetched: PrefetchedProgram | None = None


class SharedTraces:
    """Finds and publishes the shared trace of one graph.

    `parts` are the parts of the graph's digest: the Dynamo graph, the target and the options.
    """

    def __init__(
        self, access: FarmAccess, parts: Mapping[str, str], target: str, options: CompileOptions
    ) -> None:
        self.parts = parts
        self._access = access
        self._digest = trace_digest(parts)
        self._target = target
        self._options = options
        self._miss: pb.TraceMiss | None = None

    def find(self) -> SharedTrace | None:
        """The trace, from memory, disk or farm; errors are counted.

        A publisher asks the farm before it reads its disk: else it would never publish a trace that
        only its disk has.
        """
        access = self._access
        is_away, is_swap = access.is_away, access.settings.mode == "swap"
        try:
            if not access.client.verifier.accepts_traces(may_fetch_keys=not (is_swap or is_away)):
                return None
            local = self._find_in_memory()
            if local is None and (is_away or not self.is_publisher):
                local = self._find_on_disk()
            return local if local is not None or is_away else self._find_at_farm()
        except KernelfarmError as error:
            # The graph is traced instead, and the request for its program reports the error.
            counters.count(f"warm.farm.failures.{error.reason.lower()}")
            is_late = isinstance(error, DeadlineError) and not access.watch.is_live
            if is_late or isinstance(error, UnavailableError):
                access.note_failure()
        return None

    def publish(self, key: bytes, graph: Graph, entry: bytes) -> None:
        """Publishes a new trace, if this client may and the farm reported a miss.

        Raises:
            CallerError: the private key cannot be read.
        """
        miss, signer = self._miss, self._signer()
        if miss is None or signer is None:
            return
        content = trace_content(key, graph, entry)
        trace = PublishedTrace(self._digest, content, self.parts, self._access.settings.model)
        made_in = Epoch(miss.incarnation, miss.epoch)
        try:
            outcome = publish_trace(self._access.client, signer, trace, made_in, _PUT_TIMEOUT_S)
        except KernelfarmError as error:
            counters.count(f"warm.farm.not_published.{error.reason.lower()}")
            warnings.warn(f"kernelfarm: {error}", TraceNotPublishedWarning, stacklevel=2)
            return
        if outcome == pb.PUT_TRACE_OUTCOME_STORED:
            counters.count("warm.farm.published")
        else:
            name = pb.PutTraceOutcome.Name(outcome).removeprefix("PUT_TRACE_OUTCOME_")
            counters.count(f"warm.farm.not_published.{name.lower()}")

    @property
    def is_publisher(self) -> bool:
        """True if this client has a private key for traces."""
        return self._access.settings.trace_key_file is not None

    @property
    def may_publish(self) -> bool:
        """True if `publish` would publish a trace."""
        return self._miss is not None and self.is_publisher

    def _signer(self) -> Signer | None:
        path = self._access.settings.trace_key_file
        return None if path is None else read_signer(path, Space.TRACES)

    def _find_in_memory(self) -> SharedTrace | None:
        stored = self._access.recent_traces.get(self._digest)
        known = self._access.watch.invalidations
        if stored is None or known is None or known.is_stale(stored.manifest, self._access.tags):
            return None
        try:
            entry = self._verified(stored.manifest, stored.content)
        except (IntegrityError, MalformedMessageError):
            return None  # the trace has expired, or its key was revoked
        counters.count("warm.memory.hits")
        return SharedTrace(entry)

    def _find_on_disk(self) -> SharedTrace | None:
        def load(reader: EntryReader, _: InvalidationState) -> TraceEntry:
            content = reader.content()
            entry = self._verified(reader.manifest, content)
            self._access.recent_traces.add(StoredTrace(reader.manifest, content))
            return entry

        refused_by = (IntegrityError, MalformedMessageError)
        entry = find_on_disk(self._access, self._digest, load, refused_by=refused_by).result
        if entry is None:
            return None
        counters.count("warm.disk.hits")
        return SharedTrace(entry)

    def _find_at_farm(self) -> SharedTrace | None:
        access = self._access
        # The state that is known before the request decides what the response confirms.
        access.wait_for_invalidations()
        known = access.known_now()
        answer = self._look_up()
        if answer.trace is None:
            self._note_miss(answer)
            return None
        try:
            manifest = manifest_from_proto(answer.trace.manifest)
            entry = self._verified(manifest, answer.trace.content)
        except (IntegrityError, MalformedMessageError) as error:
            counters.count_refusal("warm_farm", error)
            return None
        if known.invalidations is not None and known.invalidations.is_stale(manifest, access.tags):
            counters.count("warm.farm.stale")
            return None
        self._store(manifest, answer.trace.content, known)
        counters.count("warm.farm.hits")
        if answer.program is None:
            return SharedTrace(entry)
        return SharedTrace(entry, PrefetchedProgram(answer.program, answer.blobs, known))

    def _look_up(self) -> TraceLookup:
        settings = self._access.settings
        is_swap = settings.mode == "swap"
        return TraceClient(self._access.client).lookup(
            self._digest,
            CallerFacts(environment=environment_facts()),
            loaded_digests(),
            _SWAP_TIMEOUT_S if is_swap else _TIMEOUT_S,
            wants_program=not is_swap,
        )

    def _note_miss(self, answer: TraceLookup) -> None:
        counters.count("warm.farm.misses")
        self._miss = answer.miss
        if answer.miss is not None and answer.miss.reason != cache_service_pb2.MISS_REASON_KEY:
            name = cache_service_pb2.MissReason.Name(answer.miss.reason)
            counters.count(f"warm.farm.misses.{name.removeprefix('MISS_REASON_').lower()}")

    def _store(self, manifest: Manifest, content: bytes, known: KnownAtRequest) -> None:
        self._access.recent_traces.add(StoredTrace(manifest, content))
        store_on_disk(self._access, manifest, {manifest.content.sha256: content}, known)

    def _verified(self, manifest: Manifest, content: bytes) -> TraceEntry:
        """The trace in a content, after verifying that a trusted key signed it for this graph.

        Raises:
            IntegrityError: it is not what its publisher made for this graph.
            MalformedMessageError: it is not a trace.
        """
        namespaces = self._access.settings.namespaces
        namespace = manifest.namespace if manifest.namespace in namespaces else namespaces[0]
        self._access.client.verifier.check(
            manifest, CacheAddress(namespace, Space.TRACES, self._digest)
        )
        check_content(manifest, content)
        try:
            trace = pb.Trace.FromString(content)
        except DecodeError as error:
            raise MalformedMessageError(f"{len(content)} bytes that are not a trace") from error
        entry = from_bytes(trace.entry)
        if trace_digest(entry.parts) != self._digest:
            raise ManifestMismatchError(
                f"expected the trace of graph {self._digest.hex()[:16]}, got that of"
                f" {trace_digest(entry.parts).hex()[:16]}"
            )
        key = program_key(entry.graph, self._target, self._options.pairs())
        if key != entry.key or key != trace.program_key:
            raise ManifestMismatchError(
                f"the trace of graph {self._digest.hex()[:16]} names program"
                f" {entry.key.hex()[:16]}; expected {key.hex()[:16]}"
            )
        return entry
