"""Traces that clients share by way of the farm, so that a new machine traces nothing.

The farm cannot check a trace, and whoever makes one decides what its readers run. So a trace is
believed only if it is signed by a key for traces that this client trusts, for this namespace and
this digest, is not too old, and is whole; from memory and disk too, since keys may be taken away.
Only a client that holds such a private key (`KERNELFARM_TRACE_KEY_FILE`) publishes.

One look-up brings a trace together with its program.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.caller_facts import environment_facts, facts_of
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.farm.recent_traces import StoredTrace
from kernelfarm.client.farm.trace_client import TraceClient, TraceLookup
from kernelfarm.client.programs.kernels import loaded_digests
from kernelfarm.client.programs.tiers import (
    WATCH_TIMEOUT_S,
    PrefetchedProgram,
    confirmation_of,
    disk_entries,
    is_live,
    refuse,
)
from kernelfarm.client.traces.entry import TraceEntry, from_bytes
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
from kernelfarm.signing import CacheAddress, Manifest, Signer, Space, check_content, variant_id
from kernelfarm.signing.key_files import read_signer
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.signing.tags import pass_tag, tenant_tag
from kernelfarm.v1 import cache_service_pb2, manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import facts_to_proto, manifest_from_proto, manifest_to_proto

CAPTURE_TAG = pass_tag("capture")
"""What all traces depend on: `kernelfarm invalidate pass:capture` forgets them."""

TRACE_VALIDITY_S = 30 * 24 * 3600
"""Their digests state all that they depend on, and nobody signs them anew."""

_TIMEOUT_S = 10.0
_SWAP_TIMEOUT_S = 1.0
"""Tracing takes no longer; in mode `swap` the caller waits for no farm."""
_PUT_TIMEOUT_S = 10.0


class TraceNotPublishedWarning(UserWarning):
    """The farm does not take traces from this client, which was told to publish them."""


@dataclass(frozen=True, slots=True)
class SharedTrace:
    """A trace that is believed, and what the farm sent of its program."""

    entry: TraceEntry
    prefetched: PrefetchedProgram | None = None


class SharedTraces:
    """The shared trace of one graph; `parts` are those of Dynamo's graph, target and options."""

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
        """The trace, from memory, disk or farm; what is wrong with one is counted.

        A publisher asks the farm first: what only its disk has would be published by nobody.
        """
        access = self._access
        is_away, is_swap = self._is_away(), access.settings.mode == "swap"
        try:
            if not access.client.verifier.accepts_traces(may_fetch_keys=not (is_swap or is_away)):
                return None
            here = self._in_memory()
            if here is None and (is_away or not self.is_publisher):
                here = self._on_disk()
            return here if here is not None or is_away else self._at_farm()
        except KernelfarmError as error:
            # The graph is traced, and asking for its program tells the caller what is wrong.
            counters.count(f"warm.farm.failures.{error.reason.lower()}")
            is_late = isinstance(error, DeadlineError) and not access.watch.is_live
            if is_late or isinstance(error, UnavailableError):
                access.note_failure()
        return None

    def publish(self, key: bytes, graph: Graph, entry: bytes) -> None:
        """Publishes what was traced, if this client may and the farm said that it has nothing.

        Raises:
            CallerError: the private key cannot be read.
        """
        miss, signer = self._miss, self._signer()
        if miss is None or signer is None:
            return
        facts = facts_to_proto(CallerFacts(inputs=facts_of(graph).inputs))
        trace = pb.Trace(program_key=key, facts=facts, entry=entry)
        content = trace.SerializeToString(deterministic=True)
        manifest = signer.sign(self._statement(content, miss))
        signed = manifest_pb2.SignedVariant(manifest=manifest_to_proto(manifest), content=content)
        try:
            outcome = TraceClient(self._access.client).put(signed, self.parts, _PUT_TIMEOUT_S)
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
        """True if this client was given a key for traces."""
        return self._access.settings.trace_key_file is not None

    @property
    def may_publish(self) -> bool:
        """True if `publish` would."""
        return self._miss is not None and self.is_publisher

    def _signer(self) -> Signer | None:
        path = self._access.settings.trace_key_file
        return None if path is None else read_signer(path, Space.TRACES)

    def _statement(self, content: bytes, miss: pb.TraceMiss) -> Manifest:
        namespace = self._access.settings.namespace
        tenant = namespace.partition("/")[2]
        tags = {CAPTURE_TAG, *self._access.tags, *([tenant_tag(tenant)] if tenant else [])}
        return Manifest(
            namespace=namespace,
            space=Space.TRACES,
            key=self._digest,
            variant_id=variant_id(()),
            guard=(),
            tags=tuple(sorted(tags)),
            epoch=miss.epoch,
            incarnation=miss.incarnation,
            content=blob_ref(content),
            blobs=(),
            cost_ms=0.0,
            not_after_s=int(time.time() + TRACE_VALIDITY_S),
        )

    def _is_away(self) -> bool:
        try:
            self._access.check_recent_failure()
        except UnavailableError:
            return True
        return False

    def _in_memory(self) -> SharedTrace | None:
        kept = self._access.recent_traces.get(self._digest)
        invalidations = self._access.watch.invalidations
        if (
            kept is None
            or invalidations is None
            or invalidations.is_stale(kept.manifest, self._access.tags)
        ):
            return None
        try:
            entry = self._checked(kept.manifest, kept.content)
        except (IntegrityError, MalformedMessageError):
            return None  # its time or its key ended
        counters.count("warm.memory.hits")
        return SharedTrace(entry)

    def _on_disk(self) -> SharedTrace | None:
        access, disk = self._access, self._access.disk
        if disk is None:
            return None
        for found in disk_entries(access, disk, self._digest):
            invalidations = access.watch.invalidations
            try:
                if invalidations is None or not is_live(access, disk, found, invalidations):
                    continue
                sha256 = found.manifest.content.sha256
                held = disk.contents(found, [sha256])
                if held is None:
                    continue
                entry = self._checked(found.manifest, held[sha256])
            except (IntegrityError, MalformedMessageError) as error:
                refuse(disk, found, error)
                continue
            disk.touch(found)
            access.recent_traces.add(StoredTrace(found.manifest, held[sha256]))
            counters.count("warm.disk.hits")
            return SharedTrace(entry)
        return None

    def _at_farm(self) -> SharedTrace | None:
        access = self._access
        # What the farm says is dated by what was heard before it was asked.
        access.watch.wait(WATCH_TIMEOUT_S)
        invalidations, asked_s = access.watch.invalidations, time.time()
        answer = self._asked()
        if answer.trace is None:
            self._note_miss(answer)
            return None
        try:
            manifest = manifest_from_proto(answer.trace.manifest)
            entry = self._checked(manifest, answer.trace.content)
        except (IntegrityError, MalformedMessageError) as error:
            counters.count_refusal("warm_farm", error)
            return None
        if invalidations is not None and invalidations.is_stale(manifest, access.tags):
            counters.count("warm.farm.stale")
            return None
        self._keep(manifest, answer.trace.content, invalidations, asked_s)
        counters.count("warm.farm.hits")
        if answer.program is None:
            return SharedTrace(entry)
        return SharedTrace(
            entry, PrefetchedProgram(answer.program, answer.blobs, invalidations, asked_s)
        )

    def _asked(self) -> TraceLookup:
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

    def _keep(
        self,
        manifest: Manifest,
        content: bytes,
        invalidations: InvalidationState | None,
        asked_s: float,
    ) -> None:
        access = self._access
        access.recent_traces.add(StoredTrace(manifest, content))
        if access.disk is not None:
            confirmation = confirmation_of(access, manifest, invalidations, asked_s)
            access.disk.put(manifest, confirmation, {manifest.content.sha256: content})

    def _checked(self, manifest: Manifest, content: bytes) -> TraceEntry:
        """The trace of a content that somebody whom we believe signed for this graph.

        Raises:
            IntegrityError: it is not what its publisher made for this graph.
            MalformedMessageError: it is no trace.
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
            raise MalformedMessageError(f"{len(content)} bytes that are no trace") from error
        entry = from_bytes(trace.entry)
        if trace_digest(entry.parts) != self._digest:
            raise ManifestMismatchError(
                f"the trace of {self._digest.hex()[:16]} says that it is another graph's"
            )
        key = program_key(entry.graph, self._target, self._options.pairs())
        if key != entry.key or key != trace.program_key:
            raise ManifestMismatchError(
                f"the trace of {self._digest.hex()[:16]} names another program than its graph's"
            )
        return entry
