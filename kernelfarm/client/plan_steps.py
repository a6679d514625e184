"""The steps of a plan as functions of a call's state; everything else is decided beforehand."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from kernelfarm.client.attention_operators import wire_name
from kernelfarm.client.drawn_seeds import draw_seeds
from kernelfarm.client.extern_node import ExternNode, is_contiguous
from kernelfarm.client.plan_inputs import input_layouts
from kernelfarm.client.plan_layout import POINTER_BYTES, Layout
from kernelfarm.client.plan_views import Slot, View
from kernelfarm.client.program import LoadedProgram
from kernelfarm.client.variants import bind_variants
from kernelfarm.errors import InternalError, InvalidGraphError
from kernelfarm.ir.program_ir import BufferKind, DrawSeeds, ExternCall, Launch


class CallState:
    """What one call reads and writes; kept and used again by later calls of the same thread.

    `tensors` has a tensor for each slot but temporaries; `views` the temporaries as extern steps
    see them.
    """

    __slots__ = ("arena", "context", "fixed", "table", "table_address", "tensors", "views")

    def __init__(self, layout: Layout) -> None:
        self.table = (ctypes.c_uint64 * max(layout.table.length, 1))()
        self.table_address = ctypes.addressof(self.table)
        self.arena: torch.Tensor | None = None
        self.fixed: list[int] = []
        self.views: list[torch.Tensor] = []
        self.tensors: list[torch.Tensor] = []
        self.context = 0


WIDEST_UNIT_ELEMS = 16
"""Elements that a view may take for one: bytes of the widest element type."""

_NO_MEMORY = 2
"""A kernel's status where it found no memory."""

Step = Callable[[CallState], None]
Fetch = Callable[[CallState], torch.Tensor]


class StepBuilder:
    """Builds the steps of one program for one layout."""

    def __init__(self, program: LoadedProgram, layout: Layout) -> None:
        self._program = program
        self._layout = layout
        self._launches = 0
        self.arena_views: list[View] = []
        # Layouts of tensors by slot: those of extern results are added as their steps are built.
        self._known_layouts = {m.slot.index: (m.shape, m.strides) for m in layout.made}
        self._known_layouts.update(input_layouts(program, layout))

    def build(self) -> list[Step]:
        """One function for each step of the plan, in order."""
        return [self._step(step) for step in self._program.plan.steps]

    def fetch(self, view: View) -> Fetch:
        """How a call gets at a view as a tensor."""
        index = view.slot.index
        if view.slot.kind is BufferKind.TEMPORARY:
            place = len(self.arena_views)
            self.arena_views.append(view)
            return lambda state: state.views[place]
        known = self._known_layouts.get(index)
        if known is not None and view.is_whole(*known):
            return lambda state: state.tensors[index]
        take = view.of
        return lambda state: take(state.tensors[index])

    def _step(self, step: Launch | ExternCall | DrawSeeds) -> Step:
        match step:
            case Launch():
                return self._launch(step)
            case ExternCall():
                return self._extern(step)
            case DrawSeeds():
                return self._draw(step)

    def _draw(self, step: DrawSeeds) -> Step:
        slots = [self._layout.slots[name] for name in step.buffers]
        for slot in slots:
            self._known_layouts[slot.index] = ((1,), (1,))
        places = [(s.index, self._layout.table.places.get(s.index, ())) for s in slots]
        device = self._program.captured.device

        def run(state: CallState) -> None:
            for (index, found), seed in zip(places, draw_seeds(len(places), device), strict=True):
                state.tensors[index] = seed
                address = seed.data_ptr()
                for place in found:
                    state.table[place] = address

        return run

    def _launch(self, step: Launch) -> Step:
        plan = self._program.plan
        slots = [self._layout.slots[name] for name in step.buffers]
        launch = bind_variants(
            self._program.kernels[step.kernel],
            [slot.size_elems for slot in slots],
            tuple(size.evaluate(self._layout.sizes) for size in step.sizes),
        )
        offset = self._layout.table.firsts[self._launches] * POINTER_BYTES
        self._launches += 1
        name = plan.kernel_names[step.kernel]

        def run(state: CallState) -> None:
            status = launch(state.table_address + offset, state.context)
            if status:
                _raise_for(status, name)

        return run

    def _extern(self, step: ExternCall) -> Step:
        node = self._node(step)
        fetches = [self._argument(step, node, number) for number in range(len(step.args))]
        run_node = node.runner()
        results = [None if r is None else self._layout.view(r) for r in step.results]
        keeps = [
            (number, self._keep(view, node.may_alias))
            for number, view in enumerate(results)
            if view is not None
        ]

        def run(state: CallState) -> None:
            found = run_node([fetch(state) for fetch in fetches])
            for number, keep in keeps:
                tensor = found[number]
                if tensor is None:
                    raise InternalError(f"{step.op} gave no tensor as result {number}")
                keep(state, tensor)

        return run

    def _argument(self, step: ExternCall, node: ExternNode, number: int) -> Fetch:
        view = self._layout.view(step.args[number])
        fetch = self.fetch(view)
        if node.needs_own_storage and view.slot.kind is not BufferKind.INPUT:
            return self._own_storage(fetch, node, number)
        is_promised = node.was_contiguous(number) and not step.is_contraction
        is_as_promised = is_contiguous(view.shape, view.strides)
        if node.widens_elements:
            return lambda state: _on_whole_units(fetch(state))
        if is_promised and not is_as_promised:
            return lambda state: fetch(state).contiguous()
        return fetch

    def _own_storage(self, fetch: Fetch, node: ExternNode, number: int) -> Fetch:
        # The offset counts in the layout that was traced, whichever one the plan chose.
        shape, strides = node.traced_layout(number)

        def take(state: CallState) -> torch.Tensor:
            tensor = fetch(state)
            own = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
            return own.copy_(tensor)

        return take

    def _node(self, step: ExternCall) -> ExternNode:
        traced = self._program.captured.nodes
        if not 0 <= step.node < len(traced):
            raise InvalidGraphError(
                f"plan: extern step for node {step.node}; the captured graph has {len(traced)}"
            )
        own = wire_name(traced[step.node].target)
        if own != step.op:
            raise InvalidGraphError(
                f"plan: extern step {step.op} for node {step.node}, which is {own}; refused"
            )
        node = ExternNode(traced[step.node], self._layout.traced_sizes)
        if node.tensor_count != len(step.args):
            raise InvalidGraphError(
                f"plan: {len(step.args)} tensors for {own}, which takes {node.tensor_count}"
            )
        return node

    def _keep(self, view: View, may_alias: bool) -> Callable[[CallState, torch.Tensor], None]:
        if view.slot.kind is not BufferKind.EXTERN:
            fetch = self.fetch(view)
            return lambda state, tensor: _copy(fetch(state), tensor)
        return self._keep_tensor(view, may_alias)

    def _keep_tensor(
        self, view: View, may_alias: bool
    ) -> Callable[[CallState, torch.Tensor], None]:
        slot, places = view.slot, self._layout.table.places.get(view.slot.index, [])
        shape, strides = view.shape, view.strides
        is_whole = view.span_elems() == slot.size_elems and view.is_whole(shape, strides)
        if is_whole:
            self._known_layouts[slot.index] = (shape, strides)

        def keep(state: CallState, tensor: torch.Tensor) -> None:
            # Kernels may write into the buffer later on, so it must not be somebody else's memory.
            is_as_planned = is_whole and tensor.stride() == strides and tensor.shape == shape
            if may_alias or not is_as_planned:
                tensor = _own_copy(view, slot, tensor)
            state.tensors[slot.index] = tensor
            if places:
                address = tensor.data_ptr()
                for place in places:
                    state.table[place] = address

        return keep


def _on_whole_units(tensor: torch.Tensor) -> torch.Tensor:
    """The elements side by side, and beginning where a wider element may begin."""
    is_aligned = tensor.is_contiguous() and tensor.storage_offset() % WIDEST_UNIT_ELEMS == 0
    return tensor if is_aligned else tensor.clone(memory_format=torch.contiguous_format)


def _own_copy(view: View, slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
    if view.offset == 0 and view.span_elems() == slot.size_elems:
        own = torch.empty_strided(view.shape, view.strides, dtype=view.dtype, device=tensor.device)
        _copy(own, tensor)
        return own
    buffer = torch.empty(slot.size_elems, dtype=slot.dtype, device=tensor.device)
    _copy(view.of(buffer), tensor)
    return buffer


def _copy(into: torch.Tensor, tensor: torch.Tensor) -> None:
    # The framework's tracing states another type than its kernel gives for some operators (saved
    # statistics in bf16, say); what was traced binds, as everything after it was made for that.
    if into.shape != tensor.shape:
        raise InternalError(
            f"an extern step gave shape {tuple(tensor.shape)}; the plan expects {tuple(into.shape)}"
        )
    if 0 in into.stride():
        into, tensor = _unexpanded(into, into), _unexpanded(tensor, into)
    into.copy_(tensor)


def _unexpanded(tensor: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """One of those elements that share a place in `into`: torch refuses to write there twice."""
    for axis, (extent, stride) in enumerate(zip(into.shape, into.stride(), strict=True)):
        if not stride and extent > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _raise_for(status: int, name: str) -> None:
    if status == 1:
        raise IndexError(f"index out of bounds in kernel {name}")
    if status == _NO_MEMORY:
        raise MemoryError(f"kernel {name} got no memory for the rows that it sorts")
    raise InternalError(f"kernel {name} failed with status {status}")
