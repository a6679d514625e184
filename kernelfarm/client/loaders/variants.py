"""Selects the variant of a kernel to launch, by guards on sizes and addresses."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.client.loaders.contract import BoundKernel, LaunchCall, LoadedKernel
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.artifact import GuardAtom, GuardOp, GuardSubject

_COMPARE: dict[GuardOp, Callable[[int, int], bool]] = {
    GuardOp.EQ: operator.eq,
    GuardOp.NE: operator.ne,
    GuardOp.LT: operator.lt,
    GuardOp.LE: operator.le,
    GuardOp.GT: operator.gt,
    GuardOp.GE: operator.ge,
    GuardOp.DIVISIBLE: lambda value, operand: value % operand == 0,
}


@dataclass(frozen=True, slots=True)
class LoadedVariant:
    """A loaded kernel with its guard, the conditions of a launch; an empty guard always holds."""

    guard: tuple[GuardAtom, ...]
    kernel: LoadedKernel


def bind_variants(
    variants: Sequence[LoadedVariant],
    extents: Sequence[int],
    sizes: tuple[int, ...],
) -> BoundKernel:
    """The first variant whose guard holds, bound to its sizes.

    Conditions on sizes (`sizes`, and the buffers' `extents` in elements) are decided here;
    conditions on addresses are checked at each launch.

    Raises:
        InvalidGraphError: there is no general variant.
    """
    symbols = size_names(sizes)
    choices: list[tuple[tuple[GuardAtom, ...], BoundKernel]] = []
    for variant in variants:
        on_addresses = tuple(a for a in variant.guard if a.subject is GuardSubject.PARAM_ADDRESS)
        fixed = (a for a in variant.guard if a.subject is not GuardSubject.PARAM_ADDRESS)
        if not all(_holds(atom, symbols, extents) for atom in fixed):
            continue
        choices.append((on_addresses, variant.kernel.bind(sizes)))
        if not on_addresses:
            return choices[0][1] if len(choices) == 1 else _choose(choices)
    raise InvalidGraphError("plan: no general variant of a kernel (one without a guard)")


def size_names(sizes: tuple[int, ...]) -> dict[str, int]:
    """A kernel's sizes by name; the canonical form names them `s0`, `s1`, ... in order."""
    return {f"s{number}": value for number, value in enumerate(sizes)}


def _choose(choices: Sequence[tuple[tuple[GuardAtom, ...], BoundKernel]]) -> BoundKernel:
    def bound(table: int, context: int) -> LaunchCall:
        launches = [(guard, kernel(table, context)) for guard, kernel in choices]

        def launch() -> int:
            for guard, run in launches:
                if all(_address_holds(atom, table) for atom in guard):
                    return run()
            raise AssertionError("the last variant has no guard")

        return launch

    return bound


def _address_holds(atom: GuardAtom, table: int) -> bool:
    address = ctypes.c_uint64.from_address(table + 8 * int(atom.name)).value
    return _COMPARE[atom.op](address, atom.operand)


def _holds(atom: GuardAtom, symbols: Mapping[str, int], extents: Sequence[int]) -> bool:
    if atom.subject is GuardSubject.SYMBOL:
        value = symbols.get(str(atom.name))
    else:
        number = int(atom.name)
        value = extents[number] if number < len(extents) else None
    return value is not None and _COMPARE[atom.op](value, atom.operand)
