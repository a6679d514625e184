"""Facts about chips and vendors' toolchains as data, each fact with its source.

A chip is one TOML file with `name = "vendor:arch"`. Facts that all chips of a vendor share
are under `chips` in the vendor's own file, the one with `vendor = "..."`; a chip's file may
override them. A chip with `base = "vendor:arch"` has that chip's facts, except those that it states
itself. A plug-in adds a package of such files as an entry point of the group
`kernelfarm.targets`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import resources
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from typing import Any

from kernelfarm.errors import InternalError, UnknownTargetError
from kernelfarm.targets.contractions import AttentionFacts as AttentionFacts
from kernelfarm.targets.contractions import BatchedProductFacts as BatchedProductFacts
from kernelfarm.targets.contractions import ConvolutionFacts as ConvolutionFacts
from kernelfarm.targets.contractions import DepthwiseFacts as DepthwiseFacts
from kernelfarm.targets.contractions import DepthwiseTemplateFacts as DepthwiseTemplateFacts
from kernelfarm.targets.contractions import FewRowFacts as FewRowFacts
from kernelfarm.targets.contractions import FlashAttentionFacts as FlashAttentionFacts
from kernelfarm.targets.contractions import FrozenProductFacts as FrozenProductFacts
from kernelfarm.targets.contractions import ManyRowFacts as ManyRowFacts
from kernelfarm.targets.contractions import ProductFacts as ProductFacts
from kernelfarm.targets.contractions import ProductTimes as ProductTimes
from kernelfarm.targets.contractions import SplitAttentionFacts as SplitAttentionFacts
from kernelfarm.targets.contractions import TileFacts as TileFacts
from kernelfarm.targets.contractions import TileTimes as TileTimes
from kernelfarm.targets.contractions import WinogradFacts as WinogradFacts
from kernelfarm.targets.facts import CompileCost as CompileCost
from kernelfarm.targets.facts import TargetFacts as TargetFacts
from kernelfarm.targets.facts import VendorFacts as VendorFacts
from kernelfarm.targets.hardware import CubeFacts as CubeFacts
from kernelfarm.targets.hardware import GpuFacts as GpuFacts
from kernelfarm.targets.hardware import LlvmFacts as LlvmFacts
from kernelfarm.targets.hardware import LocalBufferFacts as LocalBufferFacts
from kernelfarm.targets.hardware import MatrixInstruction as MatrixInstruction
from kernelfarm.targets.hardware import ProcessorFacts as ProcessorFacts
from kernelfarm.targets.hardware import TritonFacts as TritonFacts
from kernelfarm.targets.memory import ChannelsLastFacts as ChannelsLastFacts
from kernelfarm.targets.memory import MemoryFacts as MemoryFacts
from kernelfarm.targets.memory import TwoPassLimits as TwoPassLimits
from kernelfarm.targets.parse import parse_record

ENTRY_POINT_GROUP = "kernelfarm.targets"


@lru_cache(maxsize=1)
def all_targets() -> dict[str, TargetFacts]:
    """Every known chip by descriptor, in sorted order.

    Raises:
        InternalError: a file has an unknown or mistyped fact, or a chip has two files.
    """
    files = list(_files())
    shared = {data["vendor"]: data.get("chips", {}) for _, data in files if "vendor" in data}
    stated = {data["name"]: data for _, data in files if "name" in data}
    found: dict[str, TargetFacts] = {}
    for file, data in files:
        if "vendor" in data:
            continue
        vendor, _, arch = str(data.get("name", "")).partition(":")
        if not vendor or not arch:
            raise InternalError(f"{file}: expected a name as 'vendor:arch', or a vendor")
        own = _without(_merged(_base(stated, data, file), data), "base")
        facts = _merged(shared.get(vendor, {}), {**own, "vendor": vendor})
        target = parse_record(TargetFacts, facts, file)
        if target.name in found:
            raise InternalError(f"{file}: another file states the facts of {target.name}, too")
        found[target.name] = target
    return dict(sorted(found.items()))


@lru_cache(maxsize=1)
def all_vendors() -> dict[str, VendorFacts]:
    """Every vendor of a known chip by name, in sorted order.

    Raises:
        InternalError: a file has an unknown or mistyped fact.
    """
    stated = {
        data["vendor"]: parse_record(VendorFacts, _without(data, "chips"), file)
        for file, data in _files()
        if "vendor" in data
    }
    names = sorted({target.vendor for target in all_targets().values()})
    return {name: stated.get(name, VendorFacts(name)) for name in names}


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


def vendor_facts(name: str) -> VendorFacts:
    """The facts of one vendor.

    Raises:
        UnknownTargetError: no chip is of that vendor; the message lists the vendors.
    """
    vendors = all_vendors()
    if name in vendors:
        return vendors[name]
    raise UnknownTargetError(f"unknown vendor {name!r}; expected one of: {', '.join(vendors)}")


def plugin_files() -> Iterator[tuple[str, bytes]]:
    """Name and content of each TOML file that plug-ins add, in sorted order."""
    for plugin in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.value):
        entries = sorted(resources.files(plugin.value).iterdir(), key=lambda entry: entry.name)
        for entry in entries:
            if entry.name.endswith(".toml"):
                yield f"{plugin.value}/{entry.name}", entry.read_bytes()


def _files() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of each TOML file of this package and of plug-ins' packages."""
    for folder in _folders():
        for entry in folder.iterdir():
            if entry.name.endswith(".toml"):
                yield entry.name, tomllib.loads(entry.read_text(encoding="utf-8"))


def _folders() -> Iterator[Traversable]:
    yield resources.files(__name__)
    for plugin in entry_points(group=ENTRY_POINT_GROUP):
        yield resources.files(plugin.value)


def _base(
    stated: Mapping[str, dict[str, Any]], data: Mapping[str, Any], file: str
) -> Mapping[str, Any]:
    """What the file of a chip's base, and those of the base's bases, state; nothing without one."""
    bases: list[dict[str, Any]] = []
    while "base" in data:
        base = stated.get(data["base"])
        if base is None or base in bases:
            raise InternalError(f"{file}: base {data['base']!r}; expected a chip, and no circle")
        bases.append(base)
        data = base
    found: Mapping[str, Any] = {}
    for base in reversed(bases):
        found = _merged(found, base)
    return found


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Shared tables with a chip's own values in them.

    A table whose keys are numbers is a series that was measured at once: a chip's own one replaces
    it.
    """
    merged = {**shared, **own}
    for key in shared.keys() & own.keys():
        tables = shared[key], own[key]
        if all(isinstance(table, dict) and not _is_series(table) for table in tables):
            merged[key] = _merged(*tables)
    return merged


def _is_series(table: Mapping[str, Any]) -> bool:
    return bool(table) and all(key.isdecimal() for key in table)


def _without(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}
