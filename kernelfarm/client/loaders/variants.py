"""Selects the variant of a kernel to launch, by guards on sizes and addresses."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.client.loaders.contract import BoundKernel, LoadedKernel
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
    """A loaded kernel with its guard, the conditions of a launch; an empty guard always holds.

    `scratch_bytes` is the memory that each program of a user's kernel needs beside its buffers.
    """

    guard: tuple[GuardAtom, ...]
    kernel: LoadedKernel
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GuardedKernel:
    """A bound variant with its conditions on addresses; `scratch_bytes` as in `LoadedVariant`."""

    guard: tuple[GuardAtom, ...]
    kernel: BoundKernel
    scratch_bytes: int = 0


def bind_variants(
    variants: Sequence[LoadedVariant],
    extents: Sequence[int],
    sizes: tuple[int, ...],
) -> tuple[GuardedKernel, ...]:
    """The variants that launches may need, bound to their sizes; the first that holds is launched.

    Conditions on sizes (`sizes`, and the buffers' `extents` in elements) are decided here, those on
    addresses remain. The last variant has none. A variant is left out if it needs what one before
    it needs, which would be launched instead.

    Raises:
        InvalidGraphError: there is no general variant.
    """
    symbols = size_names(sizes)
    choices: list[GuardedKernel] = []
    for variant in variants:
        on_addresses = tuple(a for a in variant.guard if a.subject is GuardSubject.PARAM_ADDRESS)
        fixed = (a for a in variant.guard if a.subject is not GuardSubject.PARAM_ADDRESS)
        if not all(_holds(atom, symbols, extents) for atom in fixed):
            continue
        if any(set(choice.guard) <= set(on_addresses) for choice in choices):
            continue
        bound = variant.kernel.bind(sizes)
        choices.append(GuardedKernel(on_addresses, bound, variant.scratch_bytes))
        if not on_addresses:
            return tuple(choices)
    raise InvalidGraphError("plan: no general variant of a kernel (one without a guard)")


def size_names(sizes: tuple[int, ...]) -> dict[str, int]:
    """A kernel's sizes by name; the canonical form names them `s0`, `s1`, ... in order."""
    return {f"s{number}": value for number, value in enumerate(sizes)}


def address_holds(atom: GuardAtom, address: int) -> bool:
    """True if an address satisfies a condition."""
    return _COMPARE[atom.op](address, atom.operand)


def _holds(atom: GuardAtom, symbols: Mapping[str, int], extents: Sequence[int]) -> bool:
    if atom.subject is GuardSubject.SYMBOL:
        value = symbols.get(str(atom.name))
    else:
        number = int(atom.name)
        value = extents[number] if number < len(extents) else None
    return value is not None and _COMPARE[atom.op](value, atom.operand)
