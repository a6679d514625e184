"""Every fault by name."""

from __future__ import annotations

from tests.chaos.farm_faults import farm_faults
from tests.chaos.fault import Fault
from tests.chaos.network_faults import network_faults
from tests.chaos.process_faults import process_faults
from tests.chaos.resource_faults import resource_faults
from tests.chaos.server_faults import server_faults

ALL_FAULTS: tuple[Fault, ...] = (
    *process_faults(),
    *server_faults(),
    *resource_faults(),
    *network_faults(),
    *farm_faults(),
)


def faults_named(names: list[str]) -> tuple[Fault, ...]:
    """The faults of these names, in this order.

    Raises:
        ValueError: no fault has one of the names.
    """
    known = {fault.name: fault for fault in ALL_FAULTS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no fault {unknown[0]!r}; expected some of {', '.join(known)}")
    return tuple(known[name] for name in names)
