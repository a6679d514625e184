"""Finds a program that this process has not loaded: on disk, else at the farm.

Programs of both tiers are verified before they are used. What the farm sends is stored on disk for
later processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.call_retry import repeated_while_lost
from kernelfarm.client.farm.checked_program import ExpectedProgram, checked_content
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import CompiledProgram, decode_program
from kernelfarm.client.farm.disk_lookup import DiskLookup, EntryReader, find_on_disk, store_on_disk
from kernelfarm.client.farm.invalidation_state import InvalidationState, KnownAtRequest
from kernelfarm.client.loaders.contract import Loader
from kernelfarm.client.process.exit import pause
from kernelfarm.client.programs.loaded import LoadedProgram, load_program
from kernelfarm.errors import (
    DeadlineError,
    IntegrityError,
    MalformedMessageError,
    NotFoundError,
    PoisonedBlobError,
    UnavailableError,
)
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.guards import CallerFacts
from kernelfarm.v1 import compile_service_pb2

_STALE_PAUSE_S = 0.5
_STALE_TRIES = 10
"""A gateway applies an invalidation within 3 s."""


@dataclass(frozen=True, slots=True)
class PrefetchedProgram:
    """A program that the farm sent with its graph's trace; only digests of blobs are verified.

    `known` is the client's state when it sent the request for the trace.
    """

    program: compile_service_pb2.ProgramResult
    blobs: Mapping[bytes, bytes]
    known: KnownAtRequest


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """A captured graph, its program key, and where and how it will run."""

    graph: Graph
    key: bytes
    target: str
    options: CompileOptions
    facts: CallerFacts
    loader: Loader
    prefetched: PrefetchedProgram | None = None

    def expected(self, access: FarmAccess) -> ExpectedProgram:
        """What a manifest must be for."""
        return ExpectedProgram(access.settings.namespaces, self.key, self.target, self.facts)


def find_program(access: FarmAccess, request: ProgramRequest) -> LoadedProgram:
    """The program of a request, from the first tier that has it.

    Raises:
        KernelfarmError: no tier has it; the message has the farm's error, and why entries on disk
            were refused.
    """
    on_disk = _find_on_disk(access, request)
    if on_disk.result is not None:
        return on_disk.result
    try:
        return _find_at_farm(access, request)
    except UnavailableError as error:
        if not on_disk.refusals:
            raise
        raise UnavailableError(f"{error}; on disk: {on_disk.refusals[0]}") from error


def _find_on_disk(access: FarmAccess, request: ProgramRequest) -> DiskLookup[LoadedProgram]:
    def load(entry: EntryReader, known: InvalidationState) -> LoadedProgram:
        content = entry.content()
        message = checked_content(
            entry.manifest, content, request.expected(access), access.client.verifier.check
        )
        compiled = decode_program(message, entry.manifest, content)
        return load_program(entry, compiled, request.loader, tags=access.tags, known=known)

    refused_by = (IntegrityError, UnavailableError)
    found = find_on_disk(access, request.key, load, facts=request.facts, refused_by=refused_by)
    if access.disk is not None:
        counters.count("disk.misses" if found.result is None else "disk.hits")
    return found


def _find_at_farm(access: FarmAccess, request: ProgramRequest) -> LoadedProgram:
    """The program from the farm; requested again if it is corrupt or while a blob is missing."""
    access.check_recent_failure()
    try:
        # The state that is known before the request decides what the response confirms.
        access.wait_for_invalidations()
        if request.prefetched is not None:
            with suppress(IntegrityError, MalformedMessageError, NotFoundError):
                return _load_prefetched(access, request, request.prefetched)
        ask = partial(_request_program, access, request)
        try:
            return repeated_while_lost(ask)
        except IntegrityError:
            return repeated_while_lost(ask)
    except UnavailableError:
        access.note_failure()
        raise
    except DeadlineError:
        if not access.watch.is_live:  # the farm is not slow with this program: it is away
            access.note_failure()
        raise


def _load_prefetched(
    access: FarmAccess, request: ProgramRequest, sent: PrefetchedProgram
) -> LoadedProgram:
    """The program that came with the trace.

    Raises:
        IntegrityError, MalformedMessageError: it is not what was made for this graph.
        NotFoundError: it has been invalidated, or a blob is missing.
    """
    compiled = access.client.checked(sent.program, {request.key: request.expected(access)})
    known = access.watch.invalidations
    if known is not None and known.is_stale(compiled.manifest, access.tags):
        counters.count("farm.stale")
        raise NotFoundError(f"program {request.key.hex()[:16]} was invalidated")
    counters.count("farm.prefetched")
    return _load_and_store(access, request, compiled, _FarmReader(access, sent.blobs), sent.known)


def _request_program(access: FarmAccess, request: ProgramRequest) -> LoadedProgram:
    known = access.known_now()
    compiled = _compile(access, request)
    counters.count(_OUTCOME_COUNTERS.get(compiled.outcome, "farm.hits"))
    return _load_and_store(access, request, compiled, _FarmReader(access), known)


_OUTCOME_COUNTERS = {"miss": "farm.misses", "merged": "farm.merged"}


def _load_and_store(
    access: FarmAccess,
    request: ProgramRequest,
    compiled: CompiledProgram,
    reader: _FarmReader,
    known: KnownAtRequest,
) -> LoadedProgram:
    loaded = load_program(
        reader, compiled, request.loader, tags=access.tags, known=known.invalidations
    )
    if access.disk is not None:
        store_on_disk(access, compiled.manifest, _all_contents(compiled, reader), known)
    return loaded


def _compile(access: FarmAccess, request: ProgramRequest) -> CompiledProgram:
    """The farm's response; requested again while it is stale by this client's knowledge.

    Raises:
        UnavailableError: the farm keeps serving a stale program.
    """
    for _ in range(_STALE_TRIES):
        (found,) = access.client.compile(
            request.graph,
            [request.target],
            options=request.options,
            facts=request.facts,
            keys={request.target: request.key},
        )
        known = access.watch.invalidations
        if known is None or not known.is_stale(found.manifest, access.tags):
            return found
        counters.count("farm.stale")
        if pause(_STALE_PAUSE_S):
            break
    raise UnavailableError(
        f"the farm at {access.settings.endpoint} serves program {request.key.hex()[:16]}, which was"
        " invalidated; expected a new one"
    )


def _all_contents(compiled: CompiledProgram, reader: _FarmReader) -> dict[bytes, bytes]:
    """The program's content and all of its binaries, also those that were loaded before."""
    binaries = [a.binary.sha256 for variants in compiled.kernels for a in variants]
    contents = {compiled.manifest.content.sha256: compiled.content, **reader.contents}
    missing = [d for d in dict.fromkeys(binaries) if d not in contents]
    contents.update(reader.read_blobs(missing))
    return contents


class _FarmReader:
    """Reads blobs that were sent already, else from disk, else from the farm; collects them."""

    def __init__(self, access: FarmAccess, sent: Mapping[bytes, bytes] | None = None) -> None:
        self._access = access
        self._sent = sent or {}
        self.contents: dict[bytes, bytes] = {}

    def read_blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        found = {d: c for d in digests if (c := self._local(d)) is not None}
        missing = [digest for digest in digests if digest not in found]
        if missing:
            found.update(self._access.client.read_blobs(missing))
        self.contents.update(found)
        return found

    def _local(self, sha256: bytes) -> bytes | None:
        disk = self._access.disk
        if sha256 in self._sent or disk is None:
            return self._sent.get(sha256)
        try:
            return disk.blobs.get(sha256)
        except ValueError as error:
            counters.count_refusal("disk", PoisonedBlobError(str(error)))
            return None
