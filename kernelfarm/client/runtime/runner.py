"""A plan as a callable, which torch calls instead of the captured graph.

A call reads the sizes from its inputs. Everything that depends on sizes (views, pointer tables,
bound kernels) is computed at the first call with these sizes and cached. Steps are bound once to a
call state: one state for each thread and stream, more if calls nest. A later call only collects
addresses, runs the steps and returns the outputs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelfarm.client.pytorch import private
from kernelfarm.client.pytorch.private import _DisableAutocast
from kernelfarm.client.pytorch.tensors import maker
from kernelfarm.client.runtime import arena
from kernelfarm.client.runtime.call_state import CallState
from kernelfarm.client.runtime.check import check_plan, check_sizes
from kernelfarm.client.runtime.input_updates import InputUpdates, updated_arguments
from kernelfarm.client.runtime.inputs import InputReader
from kernelfarm.client.runtime.layout import Layout
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.results import ProgramOutputs, module_outputs, returned_arguments
from kernelfarm.client.runtime.steps import StepBuilder
from kernelfarm.client.runtime.symbols import SymbolReader

MAX_LAYOUTS = 64
"""Size assignments whose tables are cached; the least recently used is evicted first."""
_LEAST_KEPT_BYTES = 1 << 20
"""Judgement: to map the pages of less takes less time than a call takes otherwise."""


class PlanRunner:
    """Runs a program on the arguments of the traced module.

    With `is_checked`, each call checks the shapes and element types of its arguments; Dynamo guards
    them if it is the caller. With `leaves_autocast`, calls run outside the caller's autocast, for a
    program whose element types were fixed when its graph was traced. With `drops_arguments`, a call
    empties the list of its arguments, and drops each tensor after its last use. A backward graph
    is called so: nothing else refers to the tensors that its forward graph saved. Arguments that
    are returned or updated stay in the list.

    Raises:
        CallerError: (when called, checked) an argument has another shape or element type.
        InvalidGraphError: (when made) the plan does not fit the captured graph.
        IndexError: (when called) a kernel read an index outside its tensor.
    """

    def __init__(
        self,
        program: BoundProgram,
        *,
        is_checked: bool = False,
        leaves_autocast: bool = False,
        drops_arguments: bool = False,
    ) -> None:
        check_plan(program)
        self.validity = program.validity
        self._program = program
        self._leaves_autocast = leaves_autocast
        self._is_checked = is_checked
        self._drops_arguments = drops_arguments
        self._symbols = SymbolReader(program)
        self._fixed = self._made_for(()) if self._symbols.is_static else None
        self._sized: OrderedDict[tuple[int, ...], _SizedProgram] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The module's outputs; `args` has one argument for each of its placeholders."""
        fixed = self._fixed
        program = fixed if fixed is not None else self._for_sizes(args)
        if not self._leaves_autocast:
            return program.run(args)
        with _DisableAutocast():
            return program.run(args)

    @property
    def program(self) -> BoundProgram:
        """The program that calls run."""
        return self._program

    def sizes(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The sizes of a call with these arguments: equal sizes launch the same kernels."""
        return () if self._fixed is not None else self._symbols.read(args)

    def prepare(self, args: Sequence[Any]) -> ApartCall:
        """A call for the sizes of these arguments, after which no memory but its results is held.

        What lasts (layouts, constants) is made now, so that a memory pool that is active during the
        call has only memory that the call frees or returns.
        """
        program = self._fixed if self._fixed is not None else self._for_sizes(args)
        if not self._leaves_autocast:
            return program.run_apart

        def call(args: Sequence[Any]) -> list[Any]:
            with _DisableAutocast():
                return program.run_apart(args)

        return call

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
            if len(self._sized) > MAX_LAYOUTS:
                self._sized.popitem(last=False)
        return made

    def _made_for(self, values: tuple[int, ...]) -> _SizedProgram:
        sizes, traced_sizes = self._symbols.named(values)
        check_sizes(self._program, traced_sizes)
        layout = Layout(self._program, sizes, traced_sizes)
        return _SizedProgram(
            self._program,
            layout,
            is_checked=self._is_checked,
            drops_arguments=self._drops_arguments,
        )


ApartCall = Callable[[Sequence[Any]], list[Any]]
"""Runs a program once on a list of arguments, with memory of the call's own."""

MAX_CONTEXTS = 16
"""Contexts (streams, numbers of threads) whose states a thread caches for a program and size."""


class _FreeStates(threading.local):
    """The calling thread's unused states, by the context that they are bound to."""

    def __init__(self) -> None:
        self.free: dict[int, list[CallState]] = {}


class _SizedProgram:
    """The program for one assignment of its sizes."""

    def __init__(
        self, program: BoundProgram, layout: Layout, *, is_checked: bool, drops_arguments: bool
    ) -> None:
        self._layout = layout
        self._module_outputs = module_outputs(program.captured, layout.traced_sizes)
        self._drops_arguments = drops_arguments
        self._kept_arguments = returned_arguments(program.captured) | updated_arguments(
            program.captured
        )
        builder = StepBuilder(program, layout, drops_inputs=drops_arguments)
        self._updates = InputUpdates(program, layout, builder)
        self._results = ProgramOutputs(layout, builder, self._updates.outputs)
        self._steps = builder.steps()
        # Steps need tensors for temporaries even if all of these are empty.
        self._arena_bytes = max(layout.arena_bytes, 1 if self._steps.arena_views else 0)
        self._reader = InputReader(program, layout, is_checked=is_checked)
        self._device = device = program.captured.device
        self._gpu = device.index if device.type == "cuda" else None
        if device.type == "cpu" and layout.beside_bytes >= _LEAST_KEPT_BYTES:
            # Few programs need it.
            from kernelfarm.client.pytorch.kept_memory import keep_freed_memory  # noqa: PLC0415

            keep_freed_memory()
        self._context = program.loader.context
        self._failed = program.loader.failed
        self._make = [
            maker(m.shape, m.strides, m.buffer.dtype, device)
            for m in layout.made
            if m.buffer.index not in layout.late
        ]
        self._kept = [0] * layout.table.kept_count
        self._states = _FreeStates()

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The module's outputs for a list of arguments; any device may be the current one."""
        if self._gpu is None:
            return self._run(args)
        if self._gpu != private._cuda_getDevice():
            with torch.cuda.device(self._gpu):
                return self.run(args)
        # The caller's CUDA graph would use the thread's arena, which later calls write to and free.
        if self._arena_bytes and torch.cuda.is_current_stream_capturing():
            return self._run_apart(args)
        return self._run(args)

    def run_apart(self, args: Sequence[Any]) -> list[Any]:
        """As `run`, but the memory of temporaries is this call's own and is freed at its end.

        For calls that a CUDA graph records: later calls must not write to the graph's memory. The
        kernels' arguments are copied into the graph, so nothing else has to stay.
        """
        if self._gpu is None:
            return self._run_apart(args)
        with torch.cuda.device(self._gpu):
            return self._run_apart(args)

    def _run_apart(self, args: Sequence[Any]) -> list[Any]:
        state = CallState(self._steps, self._layout, [], self._context())
        try:
            if self._arena_bytes:
                block = arena.take(state.blocks, self._device, self._arena_bytes)
                self._settle(state, block)
            return self._call(state, args)
        finally:
            state.release()

    def _run(self, args: Sequence[Any]) -> list[Any]:
        context = self._context()
        free = self._states.free.get(context)
        if free is None:
            free = self._free_states(context)
        state = free.pop() if free else self._new_state(context)
        blocks, block = state.blocks, None
        if self._arena_bytes:
            block = arena.take(blocks, self._device, self._arena_bytes)
            if block is not state.arena:
                self._settle(state, block)
        try:
            return self._call(state, args)
        finally:
            state.values[:] = state.resting
            if block is not None:
                arena.give(blocks, block)
            free.append(state)

    def _call(self, state: CallState, args: Sequence[Any]) -> list[Any]:
        tensors = self._reader.read(args)
        for make in self._make:
            tensors.append(make())
        values, table = state.values, self._layout.table
        values[: len(tensors)] = tensors
        if table.length:
            addresses = [tensors[index].data_ptr() for index in table.known]
            if addresses != state.addresses:  # most calls have the addresses of the last one
                state.addresses = addresses
                addresses = addresses + self._kept + state.fixed
                table.pack_into(state.table, 0, *table.pick(addresses))
                if state.choices:
                    state.choose(addresses)
        if self._drops_arguments and isinstance(args, list):
            tensors.clear()
            kept = self._kept_arguments
            args[:] = [a if i in kept else None for i, a in enumerate(args)] if kept else ()
        for step in state.steps:
            status = step()
            if status:
                name = self._steps.names[state.steps.index(step)]
                self._failed(status, step, name)  # type: ignore[arg-type] # it is a launch
        self._updates.finish(values, args)
        outputs = self._results.read(values)
        return outputs if self._module_outputs is None else self._module_outputs(outputs, args)

    def _free_states(self, context: int) -> list[CallState]:
        known = self._states.free
        if len(known) >= MAX_CONTEXTS:
            known.clear()
        return known.setdefault(context, [])

    def _new_state(self, context: int) -> CallState:
        arena_key = (self._device, 0 if self._device.type == "cpu" else context)
        return CallState(self._steps, self._layout, arena.blocks_of(arena_key), context)

    def _settle(self, state: CallState, block: torch.Tensor) -> None:
        """Computes the addresses and views of the temporaries for a new block of memory."""
        base = block.data_ptr()
        state.arena, state.addresses = block, None
        buffers = self._layout.by_index
        state.fixed = [base + buffers[i].offset_bytes for i in self._layout.table.temporaries]
        for index, view in self._steps.arena_views:
            state.values[index] = state.resting[index] = view.of_arena(block)
