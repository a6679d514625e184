"""Which loads of a kernel are worth registers: those whose rows several loops read."""

from __future__ import annotations

from codegen_svc.emitters.triton.phases import plan_phases
from kernelfarm.ir.loop_ir import GUIDES, Kernel, Load, Reduce, Scan, Sort
from kernelfarm.traffic import row_loads


def held_loads(kernel: Kernel) -> tuple[int, ...]:
    """The numbers of the loads; none if the kernel has statements that need loops.

    Guided reductions are for rows that are read once; scans and sorts have forms of their own.
    """
    for statement in kernel.body:
        is_guided = isinstance(statement, Reduce) and statement.op in GUIDES
        if is_guided or isinstance(statement, Scan | Sort):
            return ()
    phases = plan_phases(kernel)
    return tuple(
        number
        for number in row_loads(kernel)
        if sum(number in phase.within for phase in phases) > 1
    )


def bytes_of(kernel: Kernel, number: int) -> int:
    """The bytes of an element that a load reads."""
    load = kernel.body[number]
    if not isinstance(load, Load):
        raise ValueError(f"statement {number} is no load")
    return kernel.param(load.param).dtype.itemsize_bytes
