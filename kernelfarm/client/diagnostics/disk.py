"""Usage, verification and removal of the disk tier, for `kernelfarm cache`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelfarm.client.disk.files import (
    MAX_TRACE_BYTES,
    BlobFiles,
    read_sealed,
    remove,
)
from kernelfarm.client.disk.folder import SUBFOLDERS
from kernelfarm.client.disk.sweep import QUESTION, TRACE, TierContents, scan_tier
from kernelfarm.client.disk.tier import DiskEntry, read_entry
from kernelfarm.client.traces.header import parted
from kernelfarm.digest import trace_digest
from kernelfarm.errors import (
    CallerError,
    IntegrityError,
    MalformedMessageError,
    ManifestMismatchError,
)
from kernelfarm.private_files import read_private
from kernelfarm.signing import CacheAddress, Keyring, TrustedKey, check_manifest
from kernelfarm.signing.key_files import keyring_from_text

_UNREADABLE = "UNREADABLE"
"""Reason for a link, another user's file, or a file that other users may write."""


@dataclass(frozen=True, slots=True)
class TierUsage:
    """The contents of a tier; `oldest_s` is the last use of the entry that a sweep removes next."""

    entries: int
    blobs: int
    size_bytes: int
    farms: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class CorruptFile:
    """A file that failed verification; `reason` is the reason code of the error."""

    path: Path
    reason: str
    message: str


def usage(root: Path) -> TierUsage:
    """The numbers of entries, blobs and farms in a tier, and its size."""
    contents = scan_tier(root)
    used_s = [file.used_s for file, _ in contents.entries]
    farms = sum(not path.name.endswith(".keys.json") for path in root.glob("farms/*.json"))
    return TierUsage(
        len(contents.entries),
        len(contents.blobs),
        contents.size_bytes,
        farms,
        min(used_s, default=None),
    )


def clear(root: Path) -> int:
    """Removes all files; returns their size in bytes. Running processes fetch them again."""
    size_bytes = scan_tier(root).size_bytes
    for part in SUBFOLDERS:
        shutil.rmtree(root / part, ignore_errors=True)
    return size_bytes


def verify(root: Path, pinned: Keyring | None) -> list[CorruptFile]:
    """Verifies all files; returns and removes the corrupt ones, which clients would refuse.

    Signatures are checked with the pinned keys, or with the stored keys of the farms that were used
    on this machine. An expired entry is reported, but stays until its program is fetched again.
    """
    contents = scan_tier(root)
    faults = [
        *_corrupt_blobs(contents),
        *_corrupt_entries(root, contents, pinned or _remembered(root)),
    ]
    for fault in faults:
        if fault.reason != "EXPIRED_MANIFEST":
            remove(fault.path)
    return faults


def _corrupt_blobs(contents: TierContents) -> Iterator[CorruptFile]:
    for name, blob in contents.blobs.items():
        files = BlobFiles(blob.path.parents[2])
        try:
            files.get(bytes.fromhex(name))
        except ValueError as error:
            yield CorruptFile(blob.path, "POISONED_BLOB", str(error))


def _corrupt_entries(root: Path, contents: TierContents, keyring: Keyring) -> Iterator[CorruptFile]:
    blobs = BlobFiles(root)
    for file, _ in contents.entries:
        if file.path.suffix == TRACE:
            yield from _check_trace(file.path)
            continue
        if file.path.suffix == QUESTION:
            continue  # nothing depends on it
        try:
            entry = read_entry(file.path)
            check_manifest(entry.manifest, _address_of(entry), keyring, time.time())
        except (MalformedMessageError, IntegrityError) as error:
            yield CorruptFile(file.path, error.reason, str(error))
            continue
        except FileNotFoundError:
            continue  # another process has removed it
        except OSError as error:
            yield CorruptFile(file.path, _UNREADABLE, str(error))
            continue
        missing = [sha256.hex() for sha256 in entry.blobs if not blobs.path(sha256).exists()]
        if missing:
            yield CorruptFile(
                file.path, "MISSING_BLOB", f"{len(missing)} of {len(entry.blobs)} blobs are missing"
            )


def _check_trace(path: Path) -> Iterator[CorruptFile]:
    try:
        header, _ = parted(read_private(path, MAX_TRACE_BYTES))
        digest = trace_digest(header.parts)
    except MalformedMessageError as error:
        yield CorruptFile(path, error.reason, str(error))
        return
    except FileNotFoundError:
        return  # another process has removed it
    except OSError as error:
        yield CorruptFile(path, _UNREADABLE, str(error))
        return
    if digest.hex() != path.stem:
        yield CorruptFile(
            path, ManifestMismatchError.reason, f"it has the trace with digest {digest.hex()}"
        )


def _address_of(entry: DiskEntry) -> CacheAddress:
    """The cache address of an entry; its folder's name is the key."""
    try:
        key = bytes.fromhex(entry.path.parent.name)
    except ValueError as error:
        raise MalformedMessageError(
            f"{entry.path.parent} is not named by a key of hex digits"
        ) from error
    return CacheAddress(entry.manifest.namespace, entry.manifest.space, key)


def _remembered(root: Path) -> Keyring:
    keys: list[TrustedKey] = []
    for path in sorted(root.glob("farms/*.keys.json")):
        try:
            keys += keyring_from_text(read_sealed(path).decode(), path).keys
        except (CallerError, ValueError, OSError):
            continue  # corrupt: clients fetch the keys again
    return Keyring(keys)
