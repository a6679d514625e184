"""Refusals for groups that overwrite elements still read, or whose order of updates matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelfarm.ir.algebra.simplify import Bounds, simplify
from kernelfarm.ir.loop_ir import StoreMode
from kernelfarm.ir.program_ir import BufferKind
from optimizer_svc.analysis.index_maps import Index, ravel
from optimizer_svc.analysis.storages import Storage, StorageId
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.fusion.alignment import chain_of
from optimizer_svc.ir.group import DomainAxis, Group, Member


def overwritten(storages: Mapping[int, Storage], a: Group, b: Group) -> Refused | None:
    """Refuses two groups over one domain if one point may read an element that another one writes.

    An element of an input that is updated may only be read at the point that updates it.
    """
    written: dict[StorageId, set[Index]] = {}
    for group in (a, b):
        for value, index in group.positions.items():
            if storages[value].kind is BufferKind.INPUT:
                written.setdefault(storages[value].storage_id, set()).add(index)
    if not written:
        return None
    for value, index in (*a.reads, *b.reads):
        storage_id = storages[value].storage_id
        if storage_id in written and written[storage_id] != {index}:
            return Refused("an input is read at other points than those that write over it")
    return None


def touches_scattered(storages: Mapping[int, Storage], a: Group, b: Group) -> bool:
    """True if a scatter's memory is also read or written by others than the scatter."""
    members = (*a.members, *b.members)
    scattered = {storages[m.nest.value].storage_id for m in members if m.nest.scatter is not None}
    if not scattered:
        return False
    values = [value for group in (a, b) for value, _ in group.reads]
    values += [member.nest.value for member in members]
    touched = [
        storages[value].storage_id for value in values if storages[value].storage_id in scattered
    ]
    return len(touched) > len(scattered)


def in_update_order(
    members: Sequence[Member], axes: tuple[DomainAxis, ...], bounds: Bounds
) -> tuple[DomainAxis, ...] | Refused:
    """The axes in the order in which all scatters among the members order their updates."""
    scatters = [member for member in members if member.nest.scatter is not None]
    if not scatters:
        return axes
    if any(axis.is_reduction for axis in axes):
        return Refused("a scatter has no part in the loops of a reduction")
    found: list[DomainAxis] | None = None
    for member in scatters:
        own = member.nest.axes
        position = ravel(
            tuple(member.axis_map[axis.name] for axis in own), tuple(axis.extent for axis in own)
        )
        chain = chain_of(simplify(position, bounds), axes)
        if chain is None or len(chain) != len(axes):
            return Refused("a scatter has other points than the loops beside it")
        if found is not None and found != chain and member.nest.scatter is StoreMode.SET:
            return Refused("the last of several updates would be another one")
        found = chain
    return tuple(reversed(found or axes))
