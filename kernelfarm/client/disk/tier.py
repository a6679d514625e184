"""Programs on this machine's disk: what one process fetched, the next one finds without the farm.

An entry is one variant of a program: its signed manifest, and which of its blobs lie here. Entries
of one life of the farm's epoch table lie together, so that a farm that forgot its past has none.
What is not whole, not believed or not readable is a miss, and is removed.
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
    """The farm served a program after `epoch`, to a caller with these tags of its own."""

    epoch: int
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DiskEntry:
    """One variant as it was kept; nothing of it is believed yet. `blobs` are those kept here."""

    path: Path
    manifest: Manifest
    confirmation: Confirmation
    blobs: tuple[bytes, ...]


class DiskTier:
    """The tier below a folder, of at most about `max_bytes`; several processes use it at once."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self.blobs = BlobFiles(root)
        self._budget = DiskBudget(root, max_bytes)

    def entries(self, incarnation: str, namespaces: Iterable[str], key: bytes) -> list[DiskEntry]:
        """The variants of a program, those with more conditions first."""
        folders = [self._folder(incarnation, name, key) for name in namespaces]
        found = [entry for folder in folders for entry in self._read_all(folder)]
        return [found[i] for i in by_specificity([entry.manifest.guard for entry in found])]

    def contents(self, entry: DiskEntry, digests: Sequence[bytes]) -> dict[bytes, bytes] | None:
        """Contents by SHA-256, checked; None, and no entry more, if one is missing or spoilt."""
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
        """Keeps a variant that was checked, with its contents; what cannot be written is counted.

        Blobs are written before the entry that names them, so that whoever finds it finds them.
        """
        size_bytes = sum(map(len, contents.values()))
        if not self._budget.fits(size_bytes):
            return
        stored = {
            "manifest": base64.b64encode(manifest_to_bytes(manifest)).decode(),
            "vouched_epoch": confirmation.epoch,
            "vouched_tags": sorted(confirmation.tags),
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
        """Notes a use: entries that are not used go first."""
        with suppress(OSError):
            os.utime(entry.path)

    def drop(self, entry: DiskEntry) -> None:
        """Removes an entry; blobs that nobody names any more go with the next sweep."""
        remove(entry.path)

    def _folder(self, incarnation: str, namespace: str, key: bytes) -> Path:
        # Both names come from the farm or from settings: they may be anything.
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
                continue  # removed meanwhile
            except OSError:
                counters.count("disk.unreadable")  # it may be another user's
                remove(path)


def read_entry(path: Path) -> DiskEntry:
    """An entry's file.

    Raises:
        MalformedMessageError: it is none.
        OSError: it cannot be read, or may be another user's.
    """
    try:
        stored = json.loads(read_sealed(path))
        manifest = manifest_from_bytes(base64.b64decode(stored["manifest"], validate=True))
        confirmation = Confirmation(
            int(stored["vouched_epoch"]), frozenset(map(str, stored["vouched_tags"]))
        )
        blobs = tuple(bytes.fromhex(name) for name in stored["blobs"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedMessageError(f"{path} is no entry: {error}") from error
    return DiskEntry(path, manifest, confirmation, blobs)
