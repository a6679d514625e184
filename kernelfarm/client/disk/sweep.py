"""Keeps the disk tier within its size limit: removes the least recently used entries first.

An entry is removed before its blobs, so a reader that finds an entry nearly always finds its blobs;
`disk.tier` treats an entry with a missing blob as a miss. One process sweeps at a time; readers
never wait for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kernelfarm.client import counters
from kernelfarm.client.disk.files import TEMPORARY, BlobFiles, read_sealed, remove
from kernelfarm.private_files import FILE_MODE

_KEPT_SHARE = 0.9
"""A sweep shrinks the tier to this share of its limit, so that sweeps are rare."""
_SWEEPS_PER_LIMIT = 16
"""A process checks the tier's size whenever it has written the limit divided by this number."""
_LOCK_TIMEOUT_S = 1.0
"""A process that must check the size waits this long for another process's sweep, so that writers
do not outrun it; not longer, because that process may be suspended."""
TRACE = ".trace"
"""Suffix of trace files (`traces.cache`): entries that name no blobs."""
QUESTION = ".question"
"""Suffix of questions for packages (`packages.questions`): entries that name no blobs."""
_GRACE_S = 60.0
"""A younger blob without an entry may belong to an entry that is being written."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the tier; `used_s` is the time of its last write or use, seconds since 1970."""

    path: Path
    size_bytes: int
    used_s: float


@dataclass(frozen=True, slots=True)
class TierContents:
    """A tier's files: entries with the names of their blobs; blobs by name; temporary files."""

    entries: tuple[tuple[StoredFile, frozenset[str]], ...]
    blobs: dict[str, StoredFile]
    leftovers: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(
            file.size_bytes
            for file in (*(e for e, _ in self.entries), *self.blobs.values(), *self.leftovers)
        )


class DiskBudget:
    """Keeps a tier near its size limit: starts a sweep after this process has written enough."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._until_sweep_bytes = 0

    def fits(self, size_bytes: int) -> bool:
        """True if an entry of this size is small enough for the tier."""
        return size_bytes <= self._max_bytes * _KEPT_SHARE

    def charge(self, size_bytes: int) -> None:
        """Records written bytes; sweeps if it is time."""
        with self._lock:
            self._until_sweep_bytes -= size_bytes
            if self._until_sweep_bytes > 0:
                return
            self._until_sweep_bytes = self._max_bytes // _SWEEPS_PER_LIMIT
        with _sweep_lock(self._root) as is_ours:
            if is_ours:
                sweep(self._root, self._max_bytes)


def sweep(root: Path, max_bytes: int) -> int:
    """Removes the least recently used entries until the tier fits; returns how many.

    A sweep also removes temporary files of killed processes, and blobs that no entry names.
    """
    if sum(file.size_bytes for file in _files(root)) <= max_bytes:
        return 0
    contents = scan_tier(root)
    size_bytes = contents.size_bytes - _remove_unnamed(contents)
    uses = Counter(name for _, names in contents.entries for name in names)
    gone = 0
    for file, names in sorted(contents.entries, key=lambda entry: entry[0].used_s):
        if size_bytes <= max_bytes * _KEPT_SHARE:
            break
        remove(file.path)
        gone += 1
        size_bytes -= file.size_bytes
        uses.subtract(names)
        for name in names:
            if uses[name] == 0 and name in contents.blobs:
                remove(contents.blobs[name].path)
                size_bytes -= contents.blobs[name].size_bytes
    counters.count("disk.evicted", gone)
    return gone


def scan_tier(root: Path) -> TierContents:
    """The files of a tier; other processes may change it during the scan."""
    entries, blobs, leftovers = [], {}, []
    blob_folder = BlobFiles(root).folder
    for file in _files(root):
        if file.path.suffix == TEMPORARY:
            leftovers.append(file)
        elif blob_folder in file.path.parents:
            blobs[file.path.name] = file
        else:
            entries.append((file, _names_in(file.path)))
    return TierContents(tuple(entries), blobs, tuple(leftovers))


def _remove_unnamed(contents: TierContents) -> int:
    """Removes old temporary files and old blobs that no entry names; returns their size."""
    now_s = time.time()
    named = frozenset[str]().union(*(names for _, names in contents.entries))
    orphans = [blob for name, blob in contents.blobs.items() if name not in named]
    gone = [f for f in (*orphans, *contents.leftovers) if now_s - f.used_s > _GRACE_S]
    for file in gone:
        remove(file.path)
    return sum(file.size_bytes for file in gone)


def _files(root: Path) -> Iterator[StoredFile]:
    """The files of blobs, programs and traces, without those that vanish during the scan."""
    for part in ("blobs", "programs", "traces"):
        for folder, _, names in os.walk(root / part):
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):
                    found = path.lstat()
                    yield StoredFile(path, found.st_size, found.st_mtime)


def _names_in(path: Path) -> frozenset[str]:
    """The blobs that an entry names; none if it is corrupt, which its next reader detects."""
    if path.suffix in (TRACE, QUESTION):
        return frozenset()
    try:
        return frozenset(json.loads(read_sealed(path))["blobs"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


@contextmanager
def _sweep_lock(root: Path) -> Iterator[bool]:
    """True for one process at a time; the system releases the lock of a killed process."""
    until_s = time.monotonic() + _LOCK_TIMEOUT_S
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(root / "sweep.lock", flags, FILE_MODE), "wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until_s:
                    yield False
                    return
                time.sleep(0.01)
            else:
                yield True
                return
