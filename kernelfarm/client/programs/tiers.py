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
from kernelfarm.client.disk.tier import DiskEntry, DiskTier, Vouched
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.checked_program import Wanted, checked_content
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import FoundProgram, found_program
from kernelfarm.client.farm.invalidation_state import KnownEpochs
from kernelfarm.client.loaders.contract import Loader
from kernelfarm.client.loaders.variants import Variant
from kernelfarm.client.process.exit import pause
from kernelfarm.client.programs.kernels import load_kernels
from kernelfarm.errors import (
    DeadlineError,
    ExpiredManifestError,
    IntegrityError,
    KernelfarmError,
    MalformedMessageError,
    MisplacedManifestError,
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

_KEPT_REFUSALS = (ExpiredManifestError, UntrustedKeyError)
"""What is wrong with time or with our own keys may be right later; the rest is removed."""


@dataclass(frozen=True, slots=True)
class Prefetched:
    """What the farm sent of a program with its graph's trace; only the blobs' digests are checked.

    `known` is what was heard of invalidations before it was asked, at `asked_s`.
    """

    program: compile_service_pb2.ProgramResult
    blobs: Mapping[bytes, bytes]
    known: KnownEpochs | None
    asked_s: float


@dataclass(frozen=True, slots=True)
class Request:
    """A captured graph, its key, where it will run, and what the farm sent of it already."""

    graph: Graph
    key: bytes
    target: str
    options: CompileOptions
    facts: CallerFacts
    loader: Loader
    prefetched: Prefetched | None = None


@dataclass(frozen=True, slots=True)
class TierProgram:
    """A program with its kernels loaded; `known` is what was heard of before it was found."""

    found: FoundProgram
    kernels: tuple[tuple[Variant, ...], ...]
    known: KnownEpochs | None


def find_program(access: FarmAccess, request: Request) -> TierProgram:
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
    access: FarmAccess, disk: DiskTier, request: Request, refusals: list[KernelfarmError]
) -> TierProgram | None:
    entries = disk_entries(access, disk, request.key)
    known = access.watch.known
    for entry in entries:
        if known is None or first_failing(entry.manifest.guard, request.facts) is not None:
            continue
        try:
            if not is_live(access, disk, entry, known):
                continue
            found = _checked_entry(access, disk, entry, request)
            if found is not None:
                reader = _EntryReader(disk, entry)
                kernels = load_kernels(reader, found, request.loader)
                disk.touch(entry)
                counters.count("disk.hits")
                return TierProgram(found, kernels, known)
        except _HoleError:
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
    known = access.watch.known
    if known is None:
        return []
    return disk.entries(known.incarnation, access.settings.namespaces, key)


def refuse(disk: DiskTier, entry: DiskEntry, error: KernelfarmError) -> None:
    """Counts what was wrong with an entry, and removes it unless it may be right later."""
    counters.count_refusal("disk", error)
    if isinstance(error, IntegrityError) and not isinstance(error, _KEPT_REFUSALS):
        disk.drop(entry)


def is_live(access: FarmAccess, disk: DiskTier, entry: DiskEntry, known: KnownEpochs) -> bool:
    """False for an entry that was invalidated, or may have been while nobody listened.

    Raises:
        MisplacedManifestError: it is of another life of the farm's epoch table than its folder.
    """
    if known.is_stale(entry.manifest, access.tags):
        counters.count("disk.stale")
        disk.drop(entry)
        return False
    if access.watch.is_live and not known.is_covered(entry.manifest, entry.vouched, access.tags):
        counters.count("disk.unvouched")
        return False
    if entry.manifest.incarnation != known.incarnation:
        raise MisplacedManifestError(f"{entry.path} is of another life of the farm's cache")
    return True


def vouched_by(
    access: FarmAccess, manifest: Manifest, known: KnownEpochs | None, asked_s: float
) -> Vouched:
    """What the farm vouched for with an answer; `known` was heard before it was asked."""
    settled = -1 if known is None else known.settled_at(asked_s)
    return Vouched(max(settled, manifest.epoch), frozenset(access.tags))


def _checked_entry(
    access: FarmAccess, disk: DiskTier, entry: DiskEntry, request: Request
) -> FoundProgram | None:
    manifest = entry.manifest
    held = disk.contents(entry, [manifest.content.sha256])
    if held is None:
        return None
    content = held[manifest.content.sha256]
    wanted = Wanted(access.settings.namespaces, request.key, request.target, request.facts)
    message = checked_content(manifest, content, wanted, access.client.trust.check)
    return found_program(message, manifest, content)


def _from_farm(access: FarmAccess, request: Request) -> TierProgram:
    """Asks the farm; what it gave is asked for once more if it is spoilt or gone."""
    access.check_recent_failure()
    try:
        # What the farm says is dated by what was heard before it was asked.
        access.watch.wait(WATCH_TIMEOUT_S)
        if request.prefetched is not None:
            with suppress(IntegrityError, MalformedMessageError, NotFoundError):
                return _taken(access, request, request.prefetched)
        try:
            return _asked(access, request)
        except (IntegrityError, NotFoundError):
            return _asked(access, request)
    except UnavailableError:
        access.note_failure()
        raise
    except DeadlineError:
        if not access.watch.is_live:  # it is not slow with this program: it answers nothing
            access.note_failure()
        raise


def _taken(access: FarmAccess, request: Request, given: Prefetched) -> TierProgram:
    """The program that came with the trace.

    Raises:
        IntegrityError, MalformedMessageError: it is not what was made for this graph.
        NotFoundError: it was invalidated meanwhile, or a blob is gone.
    """
    wanted = Wanted(access.settings.namespaces, request.key, request.target, request.facts)
    found = access.client.checked(given.program, {request.key: wanted})
    known = access.watch.known
    if known is not None and known.is_stale(found.manifest, access.tags):
        counters.count("farm.stale")
        raise NotFoundError(f"program {request.key.hex()[:16]} was invalidated")
    counters.count("farm.prefetched")
    reader = _FarmReader(access, given.blobs)
    return _loaded(access, request, found, reader, (given.known, given.asked_s))


def _asked(access: FarmAccess, request: Request) -> TierProgram:
    asked = access.watch.known, time.time()
    found = _compiled(access, request)
    counters.count({"miss": "farm.misses", "merged": "farm.merged"}.get(found.outcome, "farm.hits"))
    return _loaded(access, request, found, _FarmReader(access), asked)


def _loaded(
    access: FarmAccess,
    request: Request,
    found: FoundProgram,
    reader: _FarmReader,
    asked: tuple[KnownEpochs | None, float],
) -> TierProgram:
    """Loads what the farm answered, and keeps it on disk; `asked` is as in `vouched_by`."""
    kernels = load_kernels(reader, found, request.loader)
    if access.disk is not None:
        vouched = vouched_by(access, found.manifest, *asked)
        _keep(access, access.disk, found, vouched, reader)
    return TierProgram(found, kernels, asked[0])


def _compiled(access: FarmAccess, request: Request) -> FoundProgram:
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
        known = access.watch.known
        if known is None or not known.is_stale(found.manifest, access.tags):
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
    found: FoundProgram,
    vouched: Vouched,
    reader: _FarmReader,
) -> None:
    """Keeps a program on disk with every binary, those too that this process had loaded already."""
    binaries = [a.binary.sha256 for variants in found.kernels for a in variants]
    contents = {found.manifest.content.sha256: found.content, **reader.contents}
    missing = [d for d in dict.fromkeys(binaries) if d not in contents]
    contents.update(reader.read_blobs(missing))
    disk.put(found.manifest, vouched, contents)


class _HoleError(Exception):
    """An entry whose blobs are not all there; it was counted and removed."""


class _EntryReader:
    """Reads an entry's blobs."""

    def __init__(self, disk: DiskTier, entry: DiskEntry) -> None:
        self._disk = disk
        self._entry = entry

    def read_blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        found = self._disk.contents(self._entry, digests)
        if found is None:
            raise _HoleError
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
