"""Hardware facts as data: one TOML file for each chip, each fact with its source.

Passes and emitters ask for facts, never for vendor names. A new chip is a new file, here or in a
package that an installed plug-in names as an entry point of the group `kernelfarm.targets`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from typing import Any

from kernelfarm.errors import UnknownTargetError

ENTRY_POINT_GROUP = "kernelfarm.targets"


@dataclass(frozen=True, slots=True)
class TwoPassLimits:
    """The longest rows that two passes reduce better than one; None: two passes always do.

    `rows` lie along the reduction in memory, `columns` across it. `varying`: rows of varying length
    without a limit are reduced in one pass, too.
    """

    rows: int | None = None
    columns: int | None = None
    varying: bool = False


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Facts about one chip.

    `name` is the descriptor (`cuda:sm_90a`); `arch` what the toolchain calls it. Numbers are 0
    where they do not apply.
    """

    name: str
    vendor: str
    arch: str
    title: str
    warp_size: int
    max_threads_per_block: int
    max_shared_bytes: int
    max_grid: tuple[int, ...]
    vector_bytes: int
    vector_cores: int
    local_buffer_bytes: int
    two_pass_limits: tuple[tuple[str, TwoPassLimits], ...]
    extras: tuple[tuple[str, str], ...]

    @property
    def sorts_any_row(self) -> bool:
        """True where a row that is sorted need not fit a block: a thread has memory of its own."""
        return not (self.warp_size or self.local_buffer_bytes)

    def two_passes(self, op: str) -> TwoPassLimits:
        """Where a guided reduction of the loop IR is better done in two passes."""
        return dict(self.two_pass_limits).get(op, TwoPassLimits())

    def extra(self, key: str) -> str:
        """A vendor-specific fact by name.

        Raises:
            KeyError: this chip's file has no such fact.
        """
        return dict(self.extras)[key]


@lru_cache(maxsize=1)
def all_targets() -> dict[str, TargetFacts]:
    """Every known chip by descriptor, in sorted order."""
    found = {}
    for folder in _folders():
        for entry in folder.iterdir():
            if entry.name.endswith(".toml"):
                facts = _parse(tomllib.loads(entry.read_text(encoding="utf-8")))
                found[facts.name] = facts
    return dict(sorted(found.items()))


def target_facts(name: str) -> TargetFacts:
    """The facts of one chip.

    Raises:
        UnknownTargetError: no such chip; the message lists those of the vendor.
    """
    targets = all_targets()
    if name in targets:
        return targets[name]
    vendor = name.partition(":")[0]
    near = [t for t in targets if t.startswith(f"{vendor}:")] or list(targets)
    raise UnknownTargetError(f"unknown target {name!r}; expected one of: {', '.join(near)}")


def _folders() -> Iterator[Traversable]:
    """This package, and the packages that plug-ins name under `kernelfarm.targets`."""
    yield resources.files(__name__)
    for plugin in entry_points(group=ENTRY_POINT_GROUP):
        yield resources.files(plugin.value)


def _parse(data: dict[str, Any]) -> TargetFacts:
    return TargetFacts(
        name=data["name"],
        vendor=data["name"].partition(":")[0],
        arch=data["arch"],
        title=data["title"],
        warp_size=data.get("warp_size", 0),
        max_threads_per_block=data.get("max_threads_per_block", 0),
        max_shared_bytes=data.get("max_shared_bytes", 0),
        max_grid=tuple(data.get("max_grid", ())),
        vector_bytes=data.get("vector_bytes", 0),
        vector_cores=data.get("vector_cores", 0),
        local_buffer_bytes=data.get("local_buffer_bytes", 0),
        two_pass_limits=tuple(
            (op, TwoPassLimits(**limits))
            for op, limits in sorted(data.get("max_two_pass_elems", {}).items())
        ),
        extras=tuple(sorted((key, str(value)) for key, value in data.get("extras", {}).items())),
    )
