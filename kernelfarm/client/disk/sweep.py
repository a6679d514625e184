"""Keeps the disk tier within its limit: the entries that were used longest ago go first.

An entry goes before its blobs, so that who finds an entry nearly always finds its blobs; where not,
that is a hole, which `disk.tier` takes for a miss. One process sweeps at a time; readers never wait
for it.
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
"""A sweep makes more room than is needed now, so that the next one is far away."""
_SWEEPS_PER_LIMIT = 16
"""A process looks at the folder each time when it has written this part of the limit."""
_LOCK_TIMEOUT_S = 1.0
"""Who is to look waits for another one's sweep: else writers would outrun it. A process that was
stopped in the middle of one holds nobody up for longer."""
TRACE = ".trace"
"""Ends the names of traces (`warm_start`): entries that name no blobs."""
_GRACE_S = 60.0
"""A blob that no entry names may be of an entry that is just being written."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the tier; `used_s` is when it was written or used last, seconds since 1970."""

    path: Path
    size_bytes: int
    used_s: float


@dataclass(frozen=True, slots=True)
class TierContents:
    """Everything that lies in a tier: entries with the names of their blobs, blobs by name."""

    entries: tuple[tuple[StoredFile, frozenset[str]], ...]
    blobs: dict[str, StoredFile]
    leftovers: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return sum(
            file.size_bytes
            for file in (*(e for e, _ in self.entries), *self.blobs.values(), *self.leftovers)
        )


class DiskBudget:
    """Sees to it that a tier stays within about its limit, by what this process writes."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._until_sweep_bytes = 0

    def fits(self, size_bytes: int) -> bool:
        """True if an entry of this size may be kept at all."""
        return size_bytes <= self._max_bytes * _KEPT_SHARE

    def charge(self, size_bytes: int) -> None:
        """Tells of bytes that were written; sweeps when it is time."""
        with self._lock:
            self._until_sweep_bytes -= size_bytes
            if self._until_sweep_bytes > 0:
                return
            self._until_sweep_bytes = self._max_bytes // _SWEEPS_PER_LIMIT
        with _sweep_lock(self._root) as is_ours:
            if is_ours:
                sweep(self._root, self._max_bytes)


def sweep(root: Path, max_bytes: int) -> int:
    """Removes what was used longest ago until the tier fits; how many entries it removed.

    Leftovers of killed processes, and blobs that no entry names, go with them.
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
    """What lies in a tier now; other processes go on meanwhile."""
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
    """Removes old leftovers and old blobs that no entry names; their bytes."""
    now_s = time.time()
    named = frozenset[str]().union(*(names for _, names in contents.entries))
    orphans = [blob for name, blob in contents.blobs.items() if name not in named]
    gone = [f for f in (*orphans, *contents.leftovers) if now_s - f.used_s > _GRACE_S]
    for file in gone:
        remove(file.path)
    return sum(file.size_bytes for file in gone)


def _files(root: Path) -> Iterator[StoredFile]:
    """Files of blobs, programs and traces; what vanishes meanwhile is left out."""
    for part in ("blobs", "programs", "traces"):
        for folder, _, names in os.walk(root / part):
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):
                    found = path.lstat()
                    yield StoredFile(path, found.st_size, found.st_mtime)


def _names_in(path: Path) -> frozenset[str]:
    """The blobs that an entry names; none if it is spoilt, which its next reader finds out."""
    if path.suffix == TRACE:
        return frozenset()
    try:
        return frozenset(json.loads(read_sealed(path))["blobs"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


@contextmanager
def _sweep_lock(root: Path) -> Iterator[bool]:
    """True for one process at a time; a lock of the system's, which a killed process loses."""
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
