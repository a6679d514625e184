"""Traces that this process got from the farm: equal graphs of a model ask for theirs once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kernelfarm.signing import Manifest

_MOST = 128


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """A trace as it was signed."""

    manifest: Manifest
    content: bytes


class RecentTraces:
    """The traces used last, by digest."""

    def __init__(self) -> None:
        self._traces: OrderedDict[bytes, StoredTrace] = OrderedDict()

    def get(self, digest: bytes) -> StoredTrace | None:
        """A trace that was kept."""
        return self._traces.get(digest)

    def keep(self, trace: StoredTrace) -> None:
        """Keeps a trace that was checked, in the place of the oldest."""
        self._traces[trace.manifest.key] = trace
        while len(self._traces) > _MOST:
            self._traces.popitem(last=False)
