"""Which loads of a kernel are worth registers: those whose rows several loops read."""

from __future__ import annotations

from codegen_svc.emitters.triton.phases import Phase, plan_phases
from kernelfarm.ir.loop_ir import (
    Access,
    Kernel,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
)
from kernelfarm.traffic import row_loads


def held_loads(kernel: Kernel) -> tuple[int, ...]:
    """The numbers of the loads; none if the kernel has statements that need loops.

    An online softmax is for rows that are read once; scans and sorts have forms of their own.
    """
    for statement in kernel.body:
        is_online = isinstance(statement, Reduce) and statement.op == "softmax_sum"
        if is_online or isinstance(statement, Scan | Sort):
            return ()
    phases = plan_phases(kernel)
    return tuple(
        number
        for number in row_loads(kernel)
        if sum(number in phase.within for phase in phases) > 1
    )


def within_loops(kernel: Kernel) -> list[Statement]:
    """The statements of all loops, those of several loops several times."""
    return [kernel.body[number] for phase in plan_phases(kernel) for number in phase.within]


def reads_only(kernel: Kernel, loads: tuple[int, ...]) -> bool:
    """True if the loops load nothing but what these loads do."""
    held = [kernel.body[number] for number in loads]
    return all(each in held for each in within_loops(kernel) if isinstance(each, Load))


def loads_ahead(kernel: Kernel) -> tuple[int, ...]:
    """The loads of the last loop that may run ahead of its stores.

    They read parameters that the kernel does not write, at positions that depend on no other load.
    """
    looping = [phase for phase in plan_phases(kernel) if phase.within or phase.reduces]
    if not looping or not any(isinstance(s, Store) for s in _statements(kernel, looping[-1])):
        return ()
    held = held_loads(kernel)
    axes = {axis.name for axis in (*kernel.outer, *kernel.reduction)}
    known = axes | {size.name for size in kernel.sizes}
    return tuple(
        number
        for number in looping[-1].within
        if number not in held
        and isinstance(load := kernel.body[number], Load)
        and load.mask is None
        and load.index.symbols <= known
        and kernel.param(load.param).access is Access.READ
    )


def _statements(kernel: Kernel, phase: Phase) -> list[Statement]:
    return [kernel.body[number] for number in phase.within]


def bytes_of(kernel: Kernel, number: int) -> int:
    """The bytes of an element that a load reads."""
    load = kernel.body[number]
    if not isinstance(load, Load):
        raise ValueError(f"statement {number} is no load")
    return kernel.param(load.param).dtype.itemsize_bytes
