"""Entries that clients sign and share through the farm: traces, and packages of models.

The farm cannot check such an entry, and its author decides what its readers run. So a client uses
one only if a trusted key for traces signed it, for the client's namespace and the digest that the
client asked for, and if it is complete, has not expired and was not invalidated. The same holds for
entries in memory and on disk, because keys may be revoked. Only a client with such a private key
(`KERNELFARM_TRACE_KEY_FILE`) publishes entries.

One look-up returns an entry together with its program.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from google.protobuf.message import DecodeError

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.caller_facts import environment_facts
from kernelfarm.client.farm.disk_lookup import EntryReader, find_on_disk, store_on_disk
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.farm.recent_traces import StoredTrace
from kernelfarm.client.farm.trace_client import TraceClaim, TraceClient, TraceLookup
from kernelfarm.client.programs.kernels import loaded_digests
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.traces.publication import Epoch, PublishedTrace, publish_trace
from kernelfarm.digest import trace_digest
from kernelfarm.errors import (
    DeadlineError,
    IntegrityError,
    KernelfarmError,
    MalformedMessageError,
    UnavailableError,
)
from kernelfarm.ir.guards import CallerFacts
from kernelfarm.signing import CacheAddress, Manifest, Signer, Space, check_content
from kernelfarm.signing.key_files import read_signer
from kernelfarm.v1 import cache_service_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto

EntryT = TypeVar("EntryT")

_TIMEOUT_S = 10.0
_SWAP_TIMEOUT_S = 1.0
"""Tracing takes no longer than these; in mode `swap` the caller must not wait for the farm."""
_PUT_TIMEOUT_S = 10.0


class TraceNotPublishedWarning(UserWarning):
    """The farm refused a trace or package that this client published."""


@dataclass(frozen=True, slots=True)
class SharedEntry(Generic[EntryT]):
    """A verified entry, and the program that the farm sent with it, if it did."""

    entry: EntryT
    prefetched: PrefetchedProgram | None = None


class SignedEntries(ABC, Generic[EntryT]):
    """Finds and publishes the shared entry with one digest, which its `parts` state.

    A subclass says how the content of an entry is decoded, and names its counters: `*` in a name
    stands for the reason.
    """

    counter_names: ClassVar[Mapping[str, str]]
    refused_by: ClassVar[tuple[type[KernelfarmError], ...]] = (
        IntegrityError,
        MalformedMessageError,
    )
    keeps_in_memory: ClassVar[bool] = True
    has_program: ClassVar[bool] = True
    claim: TraceClaim | None = None
    """Set: what this process intends if the entry is missing; the farm coordinates it."""

    def __init__(self, access: FarmAccess, parts: Mapping[str, str]) -> None:
        self.parts = parts
        self.digest = trace_digest(parts)
        self._access = access
        self._miss: pb.TraceMiss | None = None

    @abstractmethod
    def _decoded(self, trace: pb.Trace) -> EntryT:
        """The entry of a signed content.

        Raises:
            KernelfarmError: one of `refused_by`; it is not what its publisher made for this digest.
        """

    @abstractmethod
    def _note_refusal(self, error: KernelfarmError) -> None:
        """Counts an entry from the farm that failed its verification."""

    def find(self) -> SharedEntry[EntryT] | None:
        """The entry, from memory, disk or farm; errors are counted.

        A publisher asks the farm before it reads its disk: else it would never publish an entry
        that only its disk has.
        """
        access = self._access
        is_away, is_swap = access.is_away, access.settings.mode == "swap"
        try:
            if not access.client.verifier.accepts_traces(may_fetch_keys=not (is_swap or is_away)):
                return None
            local = self._find_in_memory() if self.keeps_in_memory else None
            if local is None and (is_away or not self.is_publisher):
                local = self._find_on_disk()
            return local if local is not None or is_away else self._find_at_farm()
        except KernelfarmError as error:
            # The graph is traced instead, and the request for its program reports the error.
            self._note("failure", error.reason.lower())
            is_late = isinstance(error, DeadlineError) and not access.watch.is_live
            if is_late or isinstance(error, UnavailableError):
                access.note_failure()
        return None

    @property
    def in_flight_s(self) -> float:
        """How long another process may still take to make this entry, as the farm reported; or 0.

        Always 0 without a `claim`.
        """
        return 0.0 if self._miss is None else self._miss.in_flight_ms / 1e3

    @property
    def is_publisher(self) -> bool:
        """True if this client has a private key for traces."""
        return self._access.settings.trace_key_file is not None

    @property
    def may_publish(self) -> bool:
        """True if a publication would add an entry."""
        return self._miss is not None and self.is_publisher

    def _publish(self, content: bytes, tags: tuple[str, ...] = ()) -> bool:
        """Publishes a content, if this client may and the farm reported a miss.

        Returns:
            True if the farm has an entry of this digest now.

        Raises:
            CallerError: the private key cannot be read.
        """
        miss, signer = self._miss, self._signer()
        if miss is None or signer is None:
            return False
        model = self._access.settings.model
        trace = PublishedTrace(self.digest, content, self.parts, model, tags)
        made_in = Epoch(miss.incarnation, miss.epoch)
        try:
            outcome = publish_trace(self._access.client, signer, trace, made_in, _PUT_TIMEOUT_S)
        except KernelfarmError as error:
            self._note("not_published", error.reason.lower())
            warnings.warn(f"kernelfarm: {error}", TraceNotPublishedWarning, stacklevel=3)
            return False
        if outcome == pb.PUT_TRACE_OUTCOME_STORED:
            self._note("published")
        else:
            name = pb.PutTraceOutcome.Name(outcome).removeprefix("PUT_TRACE_OUTCOME_")
            self._note("not_published", name.lower())
        return outcome in (pb.PUT_TRACE_OUTCOME_STORED, pb.PUT_TRACE_OUTCOME_PRESENT)

    def _signer(self) -> Signer | None:
        path = self._access.settings.trace_key_file
        return None if path is None else read_signer(path, Space.TRACES)

    def _find_in_memory(self) -> SharedEntry[EntryT] | None:
        stored = self._access.recent_traces.get(self.digest)
        known = self._access.watch.invalidations
        if stored is None or known is None or known.is_stale(stored.manifest, self._access.tags):
            return None
        try:
            entry = self._verified(stored.manifest, stored.content)
        except self.refused_by:
            return None  # the entry has expired, or its key was revoked
        self._note("memory_hit")
        return SharedEntry(entry)

    def _find_on_disk(self) -> SharedEntry[EntryT] | None:
        def load(reader: EntryReader, _: InvalidationState) -> EntryT:
            # The signature and the address are verified before the content is read.
            self._check(reader.manifest)
            content = reader.content()
            entry = self._verified(reader.manifest, content)
            self._remember(reader.manifest, content)
            return entry

        entry = find_on_disk(self._access, self.digest, load, refused_by=self.refused_by).result
        if entry is None:
            return None
        self._note("disk_hit")
        return SharedEntry(entry)

    def _find_at_farm(self) -> SharedEntry[EntryT] | None:
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
        except self.refused_by as error:
            self._note_refusal(error)
            return None
        if known.invalidations is not None and known.invalidations.is_stale(manifest, access.tags):
            self._note("stale")
            return None
        content = answer.trace.content
        self._remember(manifest, content)
        store_on_disk(access, manifest, {manifest.content.sha256: content}, known)
        self._note("farm_hit")
        if answer.program is None:
            return SharedEntry(entry)
        return SharedEntry(entry, PrefetchedProgram(answer.program, answer.blobs, known))

    def _look_up(self) -> TraceLookup:
        settings = self._access.settings
        is_swap = settings.mode == "swap"
        return TraceClient(self._access.client).lookup(
            self.digest,
            CallerFacts(environment=environment_facts()),
            loaded_digests() if self.has_program else (),
            _SWAP_TIMEOUT_S if is_swap else _TIMEOUT_S,
            wants_program=self.has_program and not is_swap,
            claim=self.claim,
        )

    def _note_miss(self, answer: TraceLookup) -> None:
        self._miss = answer.miss
        if self.in_flight_s:
            return  # it is no miss before the caller gives up waiting
        self._note("miss")
        if answer.miss is not None and answer.miss.reason != cache_service_pb2.MISS_REASON_KEY:
            name = cache_service_pb2.MissReason.Name(answer.miss.reason)
            self._note("miss_reason", name.removeprefix("MISS_REASON_").lower())

    def _remember(self, manifest: Manifest, content: bytes) -> None:
        if self.keeps_in_memory:
            self._access.recent_traces.add(StoredTrace(manifest, content))

    def _check(self, manifest: Manifest) -> None:
        namespaces = self._access.settings.namespaces
        namespace = manifest.namespace if manifest.namespace in namespaces else namespaces[0]
        self._access.client.verifier.check(
            manifest, CacheAddress(namespace, Space.TRACES, self.digest)
        )

    def _verified(self, manifest: Manifest, content: bytes) -> EntryT:
        """The entry in a content, after verifying that a trusted key signed it for this digest.

        Raises:
            IntegrityError: it is not what its publisher made for this digest.
            MalformedMessageError: it is not an entry.
        """
        self._check(manifest)
        check_content(manifest, content)
        try:
            trace = pb.Trace.FromString(content)
        except DecodeError as error:
            raise MalformedMessageError(f"{len(content)} bytes that are not a trace") from error
        return self._decoded(trace)

    def _note(self, event: str, reason: str = "") -> None:
        counters.count(self.counter_names[event].replace("*", reason))
