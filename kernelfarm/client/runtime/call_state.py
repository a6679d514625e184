"""The state of a call, and the steps bound to it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernelfarm.client.runtime.arena import Blocks
from kernelfarm.client.runtime.layout import Layout
from kernelfarm.client.runtime.views import View


class CallState:
    """The values of one call; later calls of the same thread reuse the object.

    `values` has one tensor for each buffer except temporaries; then tensors formed from these,
    views of temporaries for extern steps, and constants. Between calls it equals `resting`, which
    has no tensor of a caller. `steps` are bound to this state and to `context`, in which kernels
    run. `table` is the pointer table; `addresses` are the addresses that it was last filled with.
    `fixed` are the addresses of the temporaries in `arena`. `choices` has the steps, by position,
    that depend on addresses.
    """

    __slots__ = (
        *("_mask", "_residues", "addresses", "arena", "blocks", "choices", "context", "fixed"),
        *("resting", "steps", "table", "values"),
    )

    def __init__(self, steps: PlanSteps, layout: Layout, blocks: Blocks, context: int) -> None:
        self.table = (ctypes.c_uint64 * max(layout.table.length, 1))()
        self.context = context
        self.resting = list(steps.values)
        self.values = list(steps.values)
        self.blocks = blocks
        self.arena: torch.Tensor | None = None
        self.fixed: list[int] = []
        self.addresses: list[int] | None = None
        self.choices: list[tuple[int, LaunchChoice]] = []
        self.steps = [make(self) for make in steps.makers]
        self._mask = steps.alignment - 1
        self._residues: list[int] = []

    def choose(self, addresses: list[int]) -> None:
        """Chooses the steps for new addresses, which the table has.

        Addresses that are as far from alignment as the last ones change nothing.
        """
        mask = self._mask
        if mask >= 0:
            residues = list(map(mask.__and__, addresses))
            if residues == self._residues:
                return
            self._residues = residues
        for position, choice in self.choices:
            self.steps[position] = choice()

    def release(self) -> None:
        """Drops the tensors at once: steps and state refer to each other, so they live longer."""
        self.values.clear()
        self.resting.clear()
        self.arena = None


Step = Callable[[], "int | None"]
"""Runs one step of a call; the result of a kernel is its status, 0 for success."""


LaunchChoice = Callable[[], Step]
"""Returns the step for the addresses that a state's table has."""

MakeStep = Callable[[CallState], Step]


@dataclass(frozen=True, slots=True)
class PlanSteps:
    """The steps of one program for one layout; `makers` bind them to a state.

    `names` has the name of each step's kernel. `values` are the initial values of a state;
    `arena_views` are set at their indices when a state gets its arena. `alignment` is the power of
    two whose multiples, as addresses, choose the same variants; 0 if there is none.
    """

    makers: list[MakeStep]
    names: list[str]
    values: list[Any]
    arena_views: list[tuple[int, View]]
    alignment: int
