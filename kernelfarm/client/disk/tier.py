"""Programs and shared traces on this machine's disk, for processes that start without the farm.

An entry is one variant of a program or trace: its signed manifest, and the list of its blobs on
this disk. Entries are stored by incarnation of the farm's epoch table, so that a farm that lost its
table has no entries. An incomplete, untrusted or unreadable entry is a miss and is removed.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from kernelfarm.client import counters
from kernelfarm.client.disk.files import BlobFiles, read_sealed, remove, write_sealed
from kernelfarm.client.disk.sweep import DiskBudget
from kernelfarm.errors import MalformedMessageError, PoisonedBlobError
from kernelfarm.ir.guards import by_specificity
from kernelfarm.signing import Manifest
from kernelfarm.wire.manifest import manifest_from_bytes, manifest_to_bytes


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The farm served a program after `epoch` to a caller with these tags of its own."""

    epoch: int
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DiskEntry:
    """One stored variant, not verified yet; `blobs` are the digests of its blobs on this disk."""

    path: Path
    manifest: Manifest
    confirmation: Confirmation
    blobs: tuple[bytes, ...]


class DiskTier:
    """The tier in a folder, of about `max_bytes` at most; several processes may use it at once."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self.blobs = BlobFiles(root)
        self._budget = DiskBudget(root, max_bytes)

    def entries(self, incarnation: str, namespaces: Iterable[str], key: bytes) -> list[DiskEntry]:
        """The entries of a key in these namespaces, those with more guard conditions first."""
        folders = [self._folder(incarnation, name, key) for name in namespaces]
        found = [entry for folder in folders for entry in self._read_all(folder)]
        return [found[i] for i in by_specificity([entry.manifest.guard for entry in found])]

    def contents(self, entry: DiskEntry, digests: Sequence[bytes]) -> dict[bytes, bytes] | None:
        """Verified blobs by SHA-256; None, and removes the entry, if one is missing or corrupt."""
        manifest = entry.manifest
        sizes = {blob.sha256: blob.size_bytes for blob in (*manifest.blobs, manifest.content)}
        found: dict[bytes, bytes] = {}
        for sha256 in digests:
            try:
                content = self.blobs.get(sha256, sizes.get(sha256))
            except ValueError as error:
                counters.count_refusal("disk", PoisonedBlobError(str(error)))
                content = None
            if content is None:
                counters.count("disk.missing_blobs")
                self.drop(entry)
                return None
            found[sha256] = content
        return found

    def put(
        self, manifest: Manifest, confirmation: Confirmation, contents: dict[bytes, bytes]
    ) -> None:
        """Stores a verified variant with its blobs; counts a failure to write.

        Blobs are written before the entry that names them, so that a reader of the entry finds
        them.
        """
        size_bytes = sum(map(len, contents.values()))
        if not self._budget.fits(size_bytes):
            return
        stored = {
            "manifest": base64.b64encode(manifest_to_bytes(manifest)).decode(),
            "confirmed_epoch": confirmation.epoch,
            "confirmed_tags": sorted(confirmation.tags),
            "blobs": [sha256.hex() for sha256 in contents],
        }
        try:
            written = [
                len(content) for sha256, content in contents.items()
                if self.blobs.put(sha256, content)
            ]  # fmt: skip
            text = json.dumps(stored).encode()
            folder = self._folder(manifest.incarnation, manifest.namespace, manifest.key)
            write_sealed(folder / f"{manifest.variant_id.hex()}.json", text)
            self._budget.charge(sum(written) + len(text))
        except OSError:
            counters.count("disk.write_failures")

    def touch(self, entry: DiskEntry) -> None:
        """Records a use: sweeps remove the least recently used entries first."""
        with suppress(OSError):
            os.utime(entry.path)

    def drop(self, entry: DiskEntry) -> None:
        """Removes an entry; the next sweep removes the blobs that no other entry names."""
        remove(entry.path)

    def _folder(self, incarnation: str, namespace: str, key: bytes) -> Path:
        # Both names come from the farm or from settings, and may contain any characters.
        parts = (quote(name, safe="").replace(".", "%2E") for name in (incarnation, namespace))
        return self.root.joinpath("programs", *parts, key.hex())

    def _read_all(self, folder: Path) -> Iterator[DiskEntry]:
        for path in sorted(folder.glob("*.json")):
            try:
                yield read_entry(path)
            except MalformedMessageError as error:
                counters.count_refusal("disk", error)
                remove(path)
            except FileNotFoundError:
                continue  # another process has removed it
            except OSError:
                counters.count("disk.unreadable")  # another user may have written it
                remove(path)


def read_entry(path: Path) -> DiskEntry:
    """The entry in a file.

    Raises:
        MalformedMessageError: the file is not a valid entry.
        OSError: it cannot be read, or another user may have written it.
    """
    try:
        stored = json.loads(read_sealed(path))
        manifest = manifest_from_bytes(base64.b64decode(stored["manifest"], validate=True))
        confirmation = Confirmation(
            int(stored["confirmed_epoch"]), frozenset(map(str, stored["confirmed_tags"]))
        )
        blobs = tuple(bytes.fromhex(name) for name in stored["blobs"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedMessageError(f"{path} is not a valid entry: {error}") from error
    return DiskEntry(path, manifest, confirmation, blobs)
