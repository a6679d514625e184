"""The order of a looped reduction kernel: the statements before, within and after each loop."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.loop_ir import (
    Access,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Store,
    index_of,
    operands_of,
    varying_values,
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One loop over the reduction points.

    `before` are the statements before the loop, which do not vary, in order; `within` the varying
    ones inside it; `reduces` the reductions that it accumulates. The last phase may have no loop.
    """

    before: tuple[int, ...]
    within: tuple[int, ...]
    reduces: tuple[int, ...]


def plan_phases(kernel: Kernel) -> tuple[Phase, ...]:
    """The loops of a kernel in order; stores that do not vary come last."""
    uses = _all_uses(kernel)
    levels = _levels(kernel, uses)
    varying = varying_values(kernel)
    reduces = [n for n, s in enumerate(kernel.body) if isinstance(s, Reduce)]
    stores = [n for n, s in enumerate(kernel.body) if isinstance(s, Store)]
    count = 1 + max((levels[n] for n in range(len(kernel.body))), default=0)
    own_of = [[n for n in reduces if levels[n] == level + 1] for level in range(count)]
    written_at = {n: levels[n] for n in stores if n in varying}
    read_at = [
        _closure([*own, *(n for n, at in written_at.items() if at == level)], uses, varying)
        for level, own in enumerate(own_of)
    ]
    written_at = {
        n: at if _is_read_before(kernel, n, read_at[at + 1 :]) else count - 1
        for n, at in written_at.items()
    }
    phases = []
    for level, own in enumerate(own_of):
        written = [n for n, at in written_at.items() if at == level]
        within = _closure([*own, *written], uses, varying)
        before = [
            n
            for n in range(len(kernel.body))
            if levels[n] == level and _is_outside(kernel, n, varying)
        ]
        phases.append(Phase(tuple(before), tuple(within), tuple(own)))
    last = tuple(n for n in stores if n not in varying)
    return (*phases, Phase(last, (), ()))


def _is_outside(kernel: Kernel, number: int, varying: frozenset[int]) -> bool:
    return number not in varying and not isinstance(kernel.body[number], Reduce | Store)


def _is_read_before(kernel: Kernel, number: int, later: list[list[int]]) -> bool:
    """True if no loop behind that of a store reads what it writes.

    Its own loop reads each element right before it is written. A buffer that is read elsewhere, or
    written twice, is written in the last loop.
    """
    store = kernel.body[number]
    assert isinstance(store, Store)
    if kernel.param(store.param).access is not Access.READ_WRITE:
        return True
    others = [
        (n, s)
        for n, s in enumerate(kernel.body)
        if isinstance(s, Load | Store) and s.param == store.param and n != number
    ]
    is_in_place = all(isinstance(s, Load) and s.index == store.index for _, s in others)
    again = {n for within in later for n in within}
    return is_in_place and again.isdisjoint(n for n, _ in others)


def _all_uses(kernel: Kernel) -> list[tuple[int, ...]]:
    """The statements that each statement uses, also through indirect symbols."""
    definitions: dict[str, int] = {}
    uses: list[tuple[int, ...]] = []
    for number, statement in enumerate(kernel.body):
        index = index_of(statement)
        symbols = sorted(index.symbols) if index is not None else []
        through = tuple(definitions[name] for name in symbols if name in definitions)
        uses.append((*operands_of(statement), *through))
        if isinstance(statement, Indirect):
            definitions[statement.symbol] = number
    return uses


def _levels(kernel: Kernel, uses: list[tuple[int, ...]]) -> list[int]:
    """For each statement the number of loops that must run before its value is known."""
    levels: list[int] = []
    for number, statement in enumerate(kernel.body):
        level = max((levels[used] for used in uses[number]), default=0)
        levels.append(level + 1 if isinstance(statement, Reduce) else level)
    return levels


def _closure(roots: list[int], uses: list[tuple[int, ...]], varying: frozenset[int]) -> list[int]:
    """The varying statements that roots need, in order, with the roots that are stores."""
    needed: set[int] = set()
    pending = list(roots)
    while pending:
        number = pending.pop()
        if number in varying and number not in needed:
            needed.add(number)
            pending.extend(uses[number])
        elif number in roots:
            pending.extend(u for u in uses[number] if u in varying)
    return sorted(needed)
