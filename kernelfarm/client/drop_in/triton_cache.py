"""Triton's cache at the farm: set `TRITON_CACHE_MANAGER` to this module's `FarmCacheManager`.

Triton stores what it compiles in its own folder, as ever. If that has no kernel, the manager asks
kernelfarm's disk tier, then the farm, once for all files of the kernel. It writes these files where
Triton's tools expect them, but not the file that lists them (`__grp__...`): so the next process
asks again, and finds nothing that was revoked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
from triton.runtime.cache import FileCacheManager

from kernelfarm.client.drop_in.fail_open import without_errors
from kernelfarm.client.drop_in.shared_files import Files, SharedFiles
from kernelfarm.client.drop_in.single_flight import found_or_awaited
from kernelfarm.client.farm.access import FarmAccess

TRITON_COUNTERS = {
    "disk_hit": "triton_cache.disk.hits",
    "farm_hit": "triton_cache.farm.hits",
    "miss": "triton_cache.farm.misses",
    "miss_reason": "triton_cache.farm.misses.*",
    "waited": "triton_cache.farm.waited",
    "stale": "triton_cache.farm.stale",
    "failure": "triton_cache.farm.failures.*",
    "published": "triton_cache.farm.published",
    "not_published": "triton_cache.farm.not_published.*",
}

_TIMINGS = ".autotune.json"
"""Of the files with the times that Triton's autotuner measured."""


class TritonFiles(SharedFiles):
    """The files of one kernel, or of one autotuned function."""

    kind = "triton"
    counter_names = TRITON_COUNTERS

    def __init__(self, access: FarmAccess, key: str, filename: str) -> None:
        # Triton's key covers its own sources, the kernel, target, options and environment.
        file = hashlib.sha256(filename.encode()).hexdigest()
        super().__init__(access, {"triton": triton.__version__, "key": key, "file": file})


class FarmCacheManager(FileCacheManager):  # type: ignore[misc] # Triton has no types
    """Triton's cache of files, which looks for kernels at the farm, too.

    Kernels and autotuned times are shared. Launchers, which are built for one machine, are not.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override=override, dump=dump)
        self._is_shared = not (override or dump)
        self._missed: dict[str, TritonFiles] = {}

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The paths of a kernel's files by name; None if it must be compiled."""
        local: dict[str, str] | None = super().get_group(filename)
        found = self._found(filename, is_local=local is not None)
        return local if found is None and filename not in self._missed else found

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        """Lists the files of a kernel that was compiled; a publisher publishes them."""
        path: str = super().put_group(filename, group)
        self._publish(filename, group)
        return path

    def get_file(self, filename: str) -> str | None:
        """The path of a file; None if there is none."""
        local: str | None = super().get_file(filename)
        if not filename.endswith(_TIMINGS):
            return local
        found = self._found(filename, is_local=local is not None)
        if found is None:
            return None if filename in self._missed else local
        return found[filename]

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Stores a file; a publisher publishes measured times."""
        path: str = super().put(data, filename, binary=binary)
        if filename.endswith(_TIMINGS):
            self._publish(filename, {filename: path})
        return path

    def _found(self, filename: str, *, is_local: bool) -> dict[str, str] | None:
        """The paths of the farm's files by name, unless Triton's folder has the files already.

        A publisher asks the farm first, and compiles again what the farm does not have.
        """

        if not self._is_shared:
            return None

        def entry_at(access: FarmAccess) -> TritonFiles | None:
            entry = TritonFiles(access, self.key, filename)
            return entry if entry.is_publisher or not is_local else None

        entry, files = found_or_awaited(entry_at)
        if entry is not None and files is None and entry.may_publish:
            self._missed[filename] = entry
        if files is None or filename not in files or is_local:
            return None
        return self._all_written(files)

    def _all_written(self, files: Files) -> dict[str, str] | None:
        def write(_: FarmAccess) -> dict[str, str]:
            return {name: self._written(name, content) for name, content in files.items()}

        return without_errors(write, None)

    def _written(self, name: str, content: bytes) -> str:
        # Timings get another name, so that the next process asks again.
        stored_as = f"farm.{name}" if name.endswith(_TIMINGS) else name
        path: str = super().put(content, stored_as)
        return path

    def _publish(self, filename: str, paths: Mapping[str, str]) -> None:
        entry = self._missed.pop(filename, None)
        if entry is not None:

            def publish(_: FarmAccess) -> None:
                entry.publish({name: Path(path).read_bytes() for name, path in paths.items()})

            without_errors(publish, None)
