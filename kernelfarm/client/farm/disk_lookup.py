"""Looks keys up in the disk tier, and stores what the farm served there.

Programs and shared traces are stored and found in the same way. An entry is used if its guard holds
for the caller, no invalidation made it stale, all of its blobs are there, and it passes
verification. While the farm answers, the watch first receives the invalidations that no process of
this machine has received yet. Without a farm, entries are used until their manifests expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kernelfarm.client import counters
from kernelfarm.client.disk.tier import DiskEntry, DiskTier
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.invalidation_state import InvalidationState, KnownAtRequest
from kernelfarm.errors import (
    ExpiredManifestError,
    IntegrityError,
    KernelfarmError,
    ManifestMismatchError,
    UntrustedKeyError,
)
from kernelfarm.ir.guards import NO_FACTS, CallerFacts, first_failing
from kernelfarm.signing import Manifest

ResultT = TypeVar("ResultT")

_TRANSIENT_REFUSALS = (ExpiredManifestError, UntrustedKeyError)
"""Errors that another clock or other keys may resolve; entries with other errors are removed."""


@dataclass(frozen=True, slots=True)
class DiskLookup(Generic[ResultT]):
    """The result of the first usable entry, and the errors of the entries that were refused."""

    result: ResultT | None
    refusals: tuple[KernelfarmError, ...] = ()


class MissingBlobError(Exception):
    """A blob of an entry is missing or corrupt; the tier has counted it and removed the entry."""


class EntryReader:
    """Reads the blobs of one entry on disk."""

    def __init__(self, disk: DiskTier, entry: DiskEntry) -> None:
        self.manifest: Manifest = entry.manifest
        self._disk = disk
        self._entry = entry

    def content(self) -> bytes:
        """The content that the manifest states; its digest is verified, its signature is not.

        Raises:
            MissingBlobError: it is missing or corrupt.
        """
        sha256 = self.manifest.content.sha256
        return self.read_blobs([sha256])[sha256]

    def read_blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Verified blobs by SHA-256.

        Raises:
            MissingBlobError: one is missing or corrupt.
        """
        found = self._disk.contents(self._entry, digests)
        if found is None:
            raise MissingBlobError
        return found


Load = Callable[[EntryReader, InvalidationState], ResultT]
"""Verifies and decodes an entry; gets the invalidations that are known now."""


def find_on_disk(
    access: FarmAccess,
    key: bytes,
    load: Load[ResultT],
    *,
    facts: CallerFacts = NO_FACTS,
    refused_by: tuple[type[KernelfarmError], ...] = (IntegrityError,),
) -> DiskLookup[ResultT]:
    """The result of `load` for the first usable entry of a key.

    If `load` raises an error of `refused_by`, the entry is refused: the error is counted, and the
    entry is removed unless the error is transient.
    """
    refusals: list[KernelfarmError] = []
    disk = access.disk
    if disk is None:
        return DiskLookup(None)
    for entry in _entries(access, disk, key):
        known = access.watch.invalidations
        if known is None or first_failing(entry.manifest.guard, facts) is not None:
            continue
        try:
            if not _is_live(access, disk, entry, known):
                continue
            result = load(EntryReader(disk, entry), known)
        except MissingBlobError:
            continue
        except refused_by as error:
            _refuse(disk, entry, error)
            refusals.append(error)
            continue
        disk.touch(entry)
        return DiskLookup(result)
    return DiskLookup(None, tuple(refusals))


def store_on_disk(
    access: FarmAccess,
    manifest: Manifest,
    contents: Mapping[bytes, bytes],
    known: KnownAtRequest,
) -> None:
    """Stores a verified program or trace of the farm; `known` is from before the request."""
    if access.disk is not None:
        access.disk.put(manifest, known.confirmation(manifest, access.tags), dict(contents))


def _entries(access: FarmAccess, disk: DiskTier, key: bytes) -> Iterator[DiskEntry]:
    """The entries of a key, after waiting for missed invalidations if there are any entries."""
    if _entries_now(access, disk, key):
        access.wait_for_invalidations()
        yield from _entries_now(access, disk, key)


def _entries_now(access: FarmAccess, disk: DiskTier, key: bytes) -> list[DiskEntry]:
    known = access.watch.invalidations
    if known is None:
        return []
    return disk.entries(known.incarnation, access.settings.namespaces, key)


def _is_live(
    access: FarmAccess, disk: DiskTier, entry: DiskEntry, known: InvalidationState
) -> bool:
    """False for an entry that is stale, or that an unknown invalidation may have made stale.

    Raises:
        ManifestMismatchError: its manifest is of another incarnation than its folder.
    """
    if known.is_stale(entry.manifest, access.tags):
        counters.count("disk.stale")
        disk.drop(entry)
        return False
    if access.watch.is_live and not known.is_covered(
        entry.manifest, entry.confirmation, access.tags
    ):
        counters.count("disk.unconfirmed")
        return False
    if entry.manifest.incarnation != known.incarnation:
        raise ManifestMismatchError(
            f"{entry.path} is of incarnation {entry.manifest.incarnation} of the farm's epoch"
            f" table; expected {known.incarnation}"
        )
    return True


def _refuse(disk: DiskTier, entry: DiskEntry, error: KernelfarmError) -> None:
    counters.count_refusal("disk", error)
    if isinstance(error, IntegrityError) and not isinstance(error, _TRANSIENT_REFUSALS):
        disk.drop(entry)
