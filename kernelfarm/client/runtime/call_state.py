"""The state of a call, and the steps that are bound to it."""

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
    """What one call reads and writes; kept and used again by later calls of the same thread.

    `values` has a tensor for each slot but temporaries, then what steps make of these, the
    temporaries as extern steps see them, and constants; between calls it is as `resting`, which
    holds no tensor of a caller. `steps` are bound to this state and to `context`, where kernels
    run. `addresses` are those that stand in the table of pointers.
    """

    __slots__ = (
        *("addresses", "arena", "blocks", "context", "fixed"),
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
        self.steps = [make(self) for make in steps.makers]


Step = Callable[[], "int | None"]
"""One step of a call; a kernel gives its status, which is 0 if all went well."""


MakeStep = Callable[[CallState], Step]


@dataclass(frozen=True, slots=True)
class PlanSteps:
    """The steps of one program for one layout, which each state binds to itself.

    `names` tells of each step which kernel it launches. `values` are what a state's begin with;
    `arena_views` are set at their places when a state gets its memory.
    """

    makers: list[MakeStep]
    names: list[str]
    values: list[Any]
    arena_views: list[tuple[int, View]]
