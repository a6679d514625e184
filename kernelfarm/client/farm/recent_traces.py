"""Shared traces in this process's memory, so that equal graphs of a model fetch theirs once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kernelfarm.signing import Manifest

_MOST = 128


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """A signed trace: its manifest, and its content as bytes."""

    manifest: Manifest
    content: bytes


class RecentTraces:
    """The latest traces by digest."""

    def __init__(self) -> None:
        self._traces: OrderedDict[bytes, StoredTrace] = OrderedDict()

    def get(self, digest: bytes) -> StoredTrace | None:
        """The trace of a digest; None if it is not in memory."""
        return self._traces.get(digest)

    def add(self, trace: StoredTrace) -> None:
        """Adds a verified trace; evicts the oldest if there are too many."""
        self._traces[trace.manifest.key] = trace
        while len(self._traces) > _MOST:
            self._traces.popitem(last=False)
