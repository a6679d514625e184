"""Launches of kernels whose variants assume something of addresses, most often their alignment.

The addresses of arguments, outputs and temporaries are known before the first step, and most calls
have those of the last one. So a variant is chosen when addresses change. Only the addresses of what
steps make (results of extern steps, large outputs) are checked at each launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from kernelfarm.client.loaders.contract import LaunchCall
from kernelfarm.client.loaders.variants import GuardedKernel, address_holds
from kernelfarm.client.runtime.call_state import CallState, Step
from kernelfarm.client.runtime.layout import POINTER_BYTES
from kernelfarm.ir.artifact import GuardAtom, GuardOp


class GuardedLaunch:
    """A step that launches one of several variants; `position` is the step's.

    `first` is the index of its first pointer in the pointer table. `late` are the parameters whose
    buffers are made by steps.
    """

    def __init__(
        self,
        variants: Sequence[GuardedKernel],
        first: int,
        late: frozenset[int],
        *,
        position: int,
    ) -> None:
        self._variants, self._first, self._position = variants, first, position
        # By variant: the conditions on addresses that are known early, and those on the others.
        self._early = [
            [(first + int(atom.name), atom) for atom in v.guard if int(atom.name) not in late]
            for v in variants
        ]
        self._late = [
            [(first + int(atom.name), atom) for atom in v.guard if int(atom.name) in late]
            for v in variants
        ]

    def atoms(self) -> Iterable[GuardAtom]:
        """All conditions on addresses."""
        return (atom for variant in self._variants for atom in variant.guard)

    def bound(self, state: CallState) -> Step:
        """The step for the addresses that the state's table has; the state chooses it again."""
        at = ctypes.addressof(state.table) + self._first * POINTER_BYTES
        launches = [variant.kernel(at, state.context) for variant in self._variants]
        choose = _Choice(self, launches, state.table)
        state.choices.append((self._position, choose))
        return choose()

    def choose(self, launches: Sequence[LaunchCall], table: Any) -> LaunchCall:
        """The launch for the addresses that are known early, which checks the late ones."""
        possible = []
        for early, late, launch in zip(self._early, self._late, launches, strict=True):
            if all(address_holds(atom, table[index]) for index, atom in early):
                possible.append((late, launch))
                if not late:
                    break
        return possible[0][1] if len(possible) == 1 else _checking(possible, table)


class _Choice:
    """The bound launches of one step, and the choice among them."""

    __slots__ = ("_launches", "_step", "_table")

    def __init__(self, step: GuardedLaunch, launches: list[LaunchCall], table: Any) -> None:
        self._step, self._launches, self._table = step, launches, table

    def __call__(self) -> LaunchCall:
        return self._step.choose(self._launches, self._table)


def _checking(
    possible: Sequence[tuple[list[tuple[int, GuardAtom]], LaunchCall]], table: Any
) -> LaunchCall:
    """A launch of the first variant whose conditions hold; the last one has none."""
    *guarded, (_, general) = possible
    if len(guarded) == 1:
        ((late, aligned),) = guarded
        alignment = _alignment(atom for _, atom in late)
        if alignment:
            return _if_aligned([index for index, _ in late], alignment - 1, aligned, general, table)

    def run() -> int:
        for late, launch in guarded:
            if all(address_holds(atom, table[index]) for index, atom in late):
                return launch()
        return general()

    return run


def _if_aligned(
    indices: list[int], mask: int, aligned: LaunchCall, general: LaunchCall, table: Any
) -> LaunchCall:
    """`_checking` for the usual conditions, without a call for each."""

    def run() -> int:
        for index in indices:
            if table[index] & mask:
                return general()
        return aligned()

    return run


def common_alignment(steps: Iterable[GuardedLaunch]) -> int:
    """The power of two whose multiples satisfy all conditions on addresses; 0 if there is none."""
    return _alignment(atom for step in steps for atom in step.atoms())


def _alignment(atoms: Iterable[GuardAtom]) -> int:
    largest = 1
    for atom in atoms:
        operand = atom.operand
        if atom.op is not GuardOp.DIVISIBLE or operand <= 0 or operand & (operand - 1):
            return 0
        largest = max(largest, operand)
    return largest
