"""A plan as a callable: what torch calls instead of the captured graph.

Sizes are read from the inputs; everything that follows from them (views, pointer tables, bound
kernels) is computed at the first call with these sizes and kept. A call then only collects
addresses, runs the steps and hands out the outputs. Calls may come from several threads at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelfarm.client import arena
from kernelfarm.client.fast_torch import maker
from kernelfarm.client.plan_check import check_plan, check_sizes
from kernelfarm.client.plan_inputs import InputReader
from kernelfarm.client.plan_layout import Layout, Result
from kernelfarm.client.plan_results import hand_out
from kernelfarm.client.plan_steps import CallState, StepBuilder
from kernelfarm.client.plan_symbols import SymbolReader
from kernelfarm.client.plan_updates import InputUpdates
from kernelfarm.client.program import LoadedProgram
from kernelfarm.ir.program_ir import BufferKind

KEPT_LAYOUTS = 64
"""Size assignments whose tables are kept; the least recently used goes first."""


class PlanRunner:
    """Runs a program on the arguments of the traced module.

    `is_checked` looks at shapes and element types of each call's arguments, which Dynamo guards
    where it is the caller.

    Raises:
        CallerError: (when called, checked) an argument of another shape or element type.
        InvalidGraphError: (when made) the plan does not fit the captured graph.
        IndexError: (when called) a kernel met an index outside its tensor.
    """

    def __init__(self, program: LoadedProgram, *, is_checked: bool = False) -> None:
        check_plan(program)
        self._program = program
        self._is_checked = is_checked
        self._symbols = SymbolReader(program)
        self._fixed = self._made_for(()) if self._symbols.is_static else None
        self._sized: OrderedDict[tuple[int, ...], _SizedProgram] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The outputs for a list of arguments, one for each of the module's placeholders."""
        fixed = self._fixed
        return fixed.run(args) if fixed is not None else self._for_sizes(args).run(args)

    def _for_sizes(self, args: Sequence[Any]) -> _SizedProgram:
        values = self._symbols.read(args)
        with self._lock:
            found = self._sized.get(values)
            if found is not None:
                self._sized.move_to_end(values)
                return found
        made = self._made_for(values)
        with self._lock:
            self._sized[values] = made
            if len(self._sized) > KEPT_LAYOUTS:
                self._sized.popitem(last=False)
        return made

    def _made_for(self, values: tuple[int, ...]) -> _SizedProgram:
        sizes, traced_sizes = self._symbols.named(values)
        check_sizes(self._program, traced_sizes)
        layout = Layout(self._program, sizes, traced_sizes)
        return _SizedProgram(self._program, layout, is_checked=self._is_checked)


_CPU = (torch.device("cpu"), 0)


class _States(threading.local):
    """The calling thread's states that no call uses now."""

    def __init__(self) -> None:
        self.free: list[CallState] = []


class _SizedProgram:
    """The program for one assignment of its sizes."""

    def __init__(self, program: LoadedProgram, layout: Layout, *, is_checked: bool) -> None:
        self._layout = layout
        builder = StepBuilder(program, layout)
        self._steps = builder.build()
        self._updates = InputUpdates(program, layout, builder)
        self._results = [
            _nothing if number in self._updates.outputs else _giver(result, builder)
            for number, result in enumerate(layout.results)
        ]
        self._hand_out = hand_out(program.captured, layout.traced_sizes)
        self._arena_views = builder.arena_views
        # Temporaries may all be empty: who looks at them still wants tensors.
        self._arena_bytes = max(layout.arena_bytes, 1 if self._arena_views else 0)
        self._reader = InputReader(program, layout, is_checked=is_checked)
        self._device = program.captured.device
        self._is_cpu = self._device.type == "cpu"
        self._context = program.loader.context
        device = self._device
        self._make = [maker(m.shape, m.strides, m.slot.dtype, device) for m in layout.made]
        self._kept = [0] * layout.table.kept_count
        self._kept_tensors: list[Any] = [None] * len(layout.kept)
        self._states = _States()

    def run(self, args: Sequence[Any]) -> list[Any]:
        free = self._states.free
        state = free.pop() if free else CallState(self._layout)
        context = state.context = self._context()
        place = _CPU if self._is_cpu else (self._device, context)
        block = None
        if self._arena_bytes:
            block = arena.take(place, self._arena_bytes)
            if block is not state.arena:
                self._settle(state, block)
        try:
            return self._run(state, args)
        finally:
            state.tensors = []
            if block is not None:
                arena.give(place, block)
            free.append(state)

    def _run(self, state: CallState, args: Sequence[Any]) -> list[Any]:
        tensors = self._reader.read(args)
        tensors += [make() for make in self._make]
        table = self._layout.table
        if table.length:
            addresses = [tensors[index].data_ptr() for index in table.known]
            addresses += self._kept
            addresses += state.fixed
            table.pack_into(state.table, 0, *table.pick(addresses))
        tensors += self._kept_tensors
        state.tensors = tensors
        for step in self._steps:
            step(state)
        self._updates.finish(state, args)
        outputs = [give(state) for give in self._results]
        return outputs if self._hand_out is None else self._hand_out(outputs, args)

    def _settle(self, state: CallState, block: torch.Tensor) -> None:
        """Computes addresses and views of the temporaries for another block of memory."""
        base = block.data_ptr()
        state.arena = block
        slots = self._layout.by_index
        state.fixed = [base + slots[i].offset_bytes for i in self._layout.table.temporaries]
        state.views = [view.of_arena(block) for view in self._arena_views]


def _nothing(state: CallState) -> None:
    """What is handed out in the place of an output that is stored in an input."""


def _giver(result: Result, builder: StepBuilder) -> Callable[[CallState], Any]:
    if result.view is None:
        value = result.value
        return lambda state: value
    view = result.view
    fetch = builder.fetch(view)
    if view.slot.kind in _KEPT_FOR_LATER_CALLS:
        return lambda state: _in_layout(fetch(state).clone(), result)
    if view.shape == result.shape and view.strides == result.strides:
        return fetch
    return lambda state: _in_layout(fetch(state), result)


_KEPT_FOR_LATER_CALLS = (BufferKind.TEMPORARY, BufferKind.CONSTANT)
"""Memory that later calls use again: a result there is handed out as a copy."""


def _in_layout(tensor: torch.Tensor, result: Result) -> torch.Tensor:
    if tensor.shape == result.shape and tensor.stride() == result.strides:
        return tensor
    out = torch.empty_strided(
        result.shape, result.strides, dtype=tensor.dtype, device=tensor.device
    )
    return out.copy_(tensor)
