"""Finds a program below the process's memory: on disk, else at the farm; checked in both.

    disk   its entry is believed, its guard holds, nothing invalidated it, its blobs are there
    farm   it has the program or makes it; the disk then keeps it for the next process

A farm that answers vouches for what is on disk: the watch (`invalidation_watch`) first hears what
was invalidated meanwhile. Without a farm the disk serves until its manifests end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kernelfarm.client import counters
from kernelfarm.client.disk.tier import Confirmation, DiskEntry, DiskTier
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.checked_program import ExpectedProgram, checked_content
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import CompiledProgram, decode_program
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.loaders.contract import Loader
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.process.exit import pause
from kernelfarm.client.programs.kernels import load_kernels
from kernelfarm.errors import (
    DeadlineError,
    ExpiredManifestError,
    IntegrityError,
    KernelfarmError,
    MalformedMessageError,
    ManifestMismatchError,
    NotFoundError,
    PoisonedBlobError,
    UnavailableError,
    UntrustedKeyError,
)
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.guards import CallerFacts, first_failing
from kernelfarm.signing import Manifest
from kernelfarm.v1 import compile_service_pb2

WATCH_TIMEOUT_S = 1.0
"""How long a program waits for word of invalidations; a farm that does not answer in that time is
taken to be away."""

_STALE_PAUSE_S = 0.5
_STALE_TRIES = 10
"""A gateway obeys an invalidation within 3 s."""

_TRANSIENT_REFUSALS = (ExpiredManifestError, UntrustedKeyError)
"""What is wrong with time or with our own keys may be right later; the rest is removed."""


@dataclass(frozen=True, slots=True)
class PrefetchedProgram:
    """What the farm sent of a program with its graph's trace; only the blobs' digests are checked.

    `known` is what was heard of invalidations before it was asked, at `requested_s`.
    """

    program: compile_service_pb2.ProgramResult
    blobs: Mapping[bytes, bytes]
    invalidations: InvalidationState | None
    requested_s: float


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """A captured graph, its key, where it will run, and what the farm sent of it already."""

    graph: Graph
    key: bytes
    target: str
    options: CompileOptions
    facts: CallerFacts
    loader: Loader
    prefetched: PrefetchedProgram | None = None


@dataclass(frozen=True, slots=True)
class TierHit:
    """A program with its kernels loaded; `known` is what was heard of before it was found."""

    found: CompiledProgram
    kernels: tuple[tuple[LoadedVariant, ...], ...]
    invalidations: InvalidationState | None


def find_program(access: FarmAccess, request: ProgramRequest) -> TierHit:
    """The program of a request, from the first tier that has it.

    Raises:
        KernelfarmError: neither has it; the message says what the farm answered, and why what is
            on disk was refused.
    """
    refusals: list[KernelfarmError] = []
    on_disk = None if access.disk is None else _from_disk(access, access.disk, request, refusals)
    if on_disk is not None:
        return on_disk
    try:
        return _from_farm(access, request)
    except UnavailableError as error:
        if not refusals:
            raise
        raise UnavailableError(f"{error}; on disk: {refusals[0]}") from error


def _from_disk(
    access: FarmAccess, disk: DiskTier, request: ProgramRequest, refusals: list[KernelfarmError]
) -> TierHit | None:
    entries = disk_entries(access, disk, request.key)
    invalidations = access.watch.invalidations
    for entry in entries:
        if invalidations is None or first_failing(entry.manifest.guard, request.facts) is not None:
            continue
        try:
            if not is_live(access, disk, entry, invalidations):
                continue
            found = _checked_entry(access, disk, entry, request)
            if found is not None:
                reader = _EntryReader(disk, entry)
                kernels = load_kernels(reader, found, request.loader)
                disk.touch(entry)
                counters.count("disk.hits")
                return TierHit(found, kernels, invalidations)
        except _MissingBlobError:
            continue
        except (IntegrityError, UnavailableError) as error:
            refuse(disk, entry, error)
            refusals.append(error)
    counters.count("disk.misses")
    return None


def disk_entries(access: FarmAccess, disk: DiskTier, key: bytes) -> list[DiskEntry]:
    """What lies there of a key, once what was invalidated meanwhile is heard of."""
    found = _entries_now(access, disk, key)
    if not found:
        return []
    access.watch.wait(WATCH_TIMEOUT_S)
    return _entries_now(access, disk, key)


def _entries_now(access: FarmAccess, disk: DiskTier, key: bytes) -> list[DiskEntry]:
    invalidations = access.watch.invalidations
    if invalidations is None:
        return []
    return disk.entries(invalidations.incarnation, access.settings.namespaces, key)


def refuse(disk: DiskTier, entry: DiskEntry, error: KernelfarmError) -> None:
    """Counts what was wrong with an entry, and removes it unless it may be right later."""
    counters.count_refusal("disk", error)
    if isinstance(error, IntegrityError) and not isinstance(error, _TRANSIENT_REFUSALS):
        disk.drop(entry)


def is_live(
    access: FarmAccess, disk: DiskTier, entry: DiskEntry, invalidations: InvalidationState
) -> bool:
    """False for an entry that was invalidated, or may have been while nobody listened.

    Raises:
        ManifestMismatchError: it is of another life of the farm's epoch table than its folder.
    """
    if invalidations.is_stale(entry.manifest, access.tags):
        counters.count("disk.stale")
        disk.drop(entry)
        return False
    if access.watch.is_live and not invalidations.is_covered(
        entry.manifest, entry.confirmation, access.tags
    ):
        counters.count("disk.unconfirmed")
        return False
    if entry.manifest.incarnation != invalidations.incarnation:
        raise ManifestMismatchError(f"{entry.path} is of another incarnation of the farm's cache")
    return True


def confirmation_of(
    access: FarmAccess,
    manifest: Manifest,
    invalidations: InvalidationState | None,
    requested_s: float,
) -> Confirmation:
    """What the farm vouched for with an answer; `known` was heard before it was asked."""
    settled = -1 if invalidations is None else invalidations.settled_at(requested_s)
    return Confirmation(max(settled, manifest.epoch), frozenset(access.tags))


def _checked_entry(
    access: FarmAccess, disk: DiskTier, entry: DiskEntry, request: ProgramRequest
) -> CompiledProgram | None:
    manifest = entry.manifest
    held = disk.contents(entry, [manifest.content.sha256])
    if held is None:
        return None
    content = held[manifest.content.sha256]
    expected = ExpectedProgram(
        access.settings.namespaces, request.key, request.target, request.facts
    )
    message = checked_content(manifest, content, expected, access.client.verifier.check)
    return decode_program(message, manifest, content)


def _from_farm(access: FarmAccess, request: ProgramRequest) -> TierHit:
    """Asks the farm; what it gave is asked for once more if it is spoilt or gone."""
    access.check_recent_failure()
    try:
        # What the farm says is dated by what was heard before it was asked.
        access.watch.wait(WATCH_TIMEOUT_S)
        if request.prefetched is not None:
            with suppress(IntegrityError, MalformedMessageError, NotFoundError):
                return _from_prefetched(access, request, request.prefetched)
        try:
            return _request_program(access, request)
        except (IntegrityError, NotFoundError):
            return _request_program(access, request)
    except UnavailableError:
        access.note_failure()
        raise
    except DeadlineError:
        if not access.watch.is_live:  # it is not slow with this program: it answers nothing
            access.note_failure()
        raise


def _from_prefetched(
    access: FarmAccess, request: ProgramRequest, given: PrefetchedProgram
) -> TierHit:
    """The program that came with the trace.

    Raises:
        IntegrityError, MalformedMessageError: it is not what was made for this graph.
        NotFoundError: it was invalidated meanwhile, or a blob is gone.
    """
    expected = ExpectedProgram(
        access.settings.namespaces, request.key, request.target, request.facts
    )
    found = access.client.checked(given.program, {request.key: expected})
    invalidations = access.watch.invalidations
    if invalidations is not None and invalidations.is_stale(found.manifest, access.tags):
        counters.count("farm.stale")
        raise NotFoundError(f"program {request.key.hex()[:16]} was invalidated")
    counters.count("farm.prefetched")
    reader = _FarmReader(access, given.blobs)
    return _loaded(access, request, found, reader, (given.invalidations, given.requested_s))


def _request_program(access: FarmAccess, request: ProgramRequest) -> TierHit:
    state_before = access.watch.invalidations, time.time()
    found = _compiled(access, request)
    counters.count({"miss": "farm.misses", "merged": "farm.merged"}.get(found.outcome, "farm.hits"))
    return _loaded(access, request, found, _FarmReader(access), state_before)


def _loaded(
    access: FarmAccess,
    request: ProgramRequest,
    found: CompiledProgram,
    reader: _FarmReader,
    state_before: tuple[InvalidationState | None, float],
) -> TierHit:
    """Loads what the farm answered, and keeps it on disk; `asked` is as in `confirmation_of`."""
    kernels = load_kernels(reader, found, request.loader)
    if access.disk is not None:
        confirmation = confirmation_of(access, found.manifest, *state_before)
        _keep(access, access.disk, found, confirmation, reader)
    return TierHit(found, kernels, state_before[0])


def _compiled(access: FarmAccess, request: ProgramRequest) -> CompiledProgram:
    """The farm's answer; one that we know to be stale is not taken.

    Raises:
        UnavailableError: the farm goes on to serve what was invalidated.
    """
    for _ in range(_STALE_TRIES):
        (found,) = access.client.compile(
            request.graph,
            [request.target],
            options=request.options,
            facts=request.facts,
            keys={request.target: request.key},
        )
        invalidations = access.watch.invalidations
        if invalidations is None or not invalidations.is_stale(found.manifest, access.tags):
            return found
        counters.count("farm.stale")
        if pause(_STALE_PAUSE_S):
            break
    raise UnavailableError(
        f"the farm at {access.settings.endpoint} serves program {request.key.hex()[:16]}, which was"
        " invalidated"
    )


def _keep(
    access: FarmAccess,
    disk: DiskTier,
    found: CompiledProgram,
    confirmation: Confirmation,
    reader: _FarmReader,
) -> None:
    """Keeps a program on disk with every binary, those too that this process had loaded already."""
    binaries = [a.binary.sha256 for variants in found.kernels for a in variants]
    contents = {found.manifest.content.sha256: found.content, **reader.contents}
    missing = [d for d in dict.fromkeys(binaries) if d not in contents]
    contents.update(reader.read_blobs(missing))
    disk.put(found.manifest, confirmation, contents)


class _MissingBlobError(Exception):
    """An entry whose blobs are not all there; it was counted and removed."""


class _EntryReader:
    """Reads an entry's blobs."""

    def __init__(self, disk: DiskTier, entry: DiskEntry) -> None:
        self._disk = disk
        self._entry = entry

    def read_blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        found = self._disk.contents(self._entry, digests)
        if found is None:
            raise _MissingBlobError
        return found


class _FarmReader:
    """Reads blobs that were sent or are on disk, else from the farm; keeps what it read."""

    def __init__(self, access: FarmAccess, given: Mapping[bytes, bytes] | None = None) -> None:
        self._access = access
        self._given = given or {}
        self.contents: dict[bytes, bytes] = {}

    def read_blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        found = {d: c for d in digests if (c := self._here(d)) is not None}
        missing = [digest for digest in digests if digest not in found]
        if missing:
            found.update(self._access.client.read_blobs(missing))
        self.contents.update(found)
        return found

    def _here(self, sha256: bytes) -> bytes | None:
        disk = self._access.disk
        if sha256 in self._given or disk is None:
            return self._given.get(sha256)
        try:
            return disk.blobs.get(sha256)
        except ValueError as error:
            counters.count_refusal("disk", PoisonedBlobError(str(error)))
            return None
