"""Builds the steps of a plan; everything but a call's values is decided when they are built.

The values of a call are one list, `CallState.values`; each step knows the indices of its operands.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch

from kernelfarm.client.capture.operator_names import wire_name
from kernelfarm.client.loaders.variants import bind_variants
from kernelfarm.client.pytorch.deterministic import with_deterministic_kernels
from kernelfarm.client.pytorch.tensors import maker
from kernelfarm.client.runtime.call_state import CallState, MakeStep, PlanSteps, Step
from kernelfarm.client.runtime.extern_node import ExternNode, is_contiguous
from kernelfarm.client.runtime.extern_steps import (
    ExternResult,
    extern_of_one,
    extern_of_several,
    in_own_storage,
    launched_kernel,
    on_whole_units,
)
from kernelfarm.client.runtime.guarded_launch import GuardedLaunch, common_alignment
from kernelfarm.client.runtime.inputs import input_layouts
from kernelfarm.client.runtime.layout import POINTER_BYTES, Layout, MadeBuffer
from kernelfarm.client.runtime.picks import Form, Formed, picker
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.releases import is_large, last_uses
from kernelfarm.client.runtime.seeds import draw_seeds
from kernelfarm.client.runtime.views import View
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import uses_of
from kernelfarm.ir.program_ir import BufferKind, DrawSeeds, ExternCall, Launch
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP

_OVERWRITTEN = 1
"""The number of the tensor whose memory `ExternNode.overwriting` takes."""


class StepBuilder:
    """Builds the steps of one program for one layout.

    With `drops_inputs`, a call drops its inputs after their last uses, too.
    """

    def __init__(
        self, program: BoundProgram, layout: Layout, *, drops_inputs: bool = False
    ) -> None:
        self._program = program
        self._layout = layout
        self._launches = 0
        self._values: list[Any] = [None] * len(layout.by_index)
        self._arena_views: list[tuple[int, View]] = []
        self._arena_indices: dict[View, int] = {}
        # Layouts by buffer index; layouts of extern results are added when their steps are built.
        self._known_layouts = {m.buffer.index: (m.shape, m.strides) for m in layout.made}
        self._known_layouts.update(input_layouts(program, layout))
        self._dropped: list[int] = []
        self._dropped_kinds = (
            *(BufferKind.EXTERN, BufferKind.TEMPORARY),
            *((BufferKind.INPUT,) if drops_inputs else ()),
        )
        self._makers: list[MakeStep] = []
        self._guarded: list[GuardedLaunch] = []
        self._names: list[str] = []
        made = {m.buffer.index: m for m in layout.made}
        unused = last_uses(program.plan, layout, with_inputs=drops_inputs)
        for number, step in enumerate(program.plan.steps):
            for index, first in layout.late.items():
                if first == number:
                    self._add(self._making(made[index]), "make")
            self._dropped = list(unused.get(number, ()))
            self._add(self._step(step), self._name(step))
            if self._dropped:
                self._add(partial(_dropping, tuple(self._dropped)), "drop")

    def steps(self) -> PlanSteps:
        """The steps of the plan in order, with all values that were added before this call."""
        alignment = common_alignment(self._guarded)
        return PlanSteps(self._makers, self._names, self._values, self._arena_views, alignment)

    def value_index(self, view: View) -> tuple[int, list[Formed]]:
        """The index of a view among a call's values, and what must be formed first."""
        index = view.buffer.index
        if view.buffer.is_in_arena:
            return self._arena_index(view), []
        known = self._known_layouts.get(index)
        if known is not None and view.is_whole(*known):
            return index, []
        made = self.new_value()
        return made, [(made, index, view.form())]

    def new_value(self, value: object = None) -> int:
        """The index of a new value in every call; `value` is its constant, if it is one."""
        self._values.append(value)
        return len(self._values) - 1

    def formed(self, view: View, form: Form) -> tuple[int, list[Formed]]:
        """The index of a view after applying `form`, and what must be formed first."""
        index, first = self.value_index(view)
        made = self.new_value()
        return made, [*first, (made, index, form)]

    def _making(self, made: MadeBuffer) -> MakeStep:
        """A step that allocates an output, or a temporary that is apart."""
        device = self._program.captured.device
        make = maker(made.shape, made.strides, made.buffer.dtype, device)
        index = made.buffer.index
        table_indices = self._layout.table.table_indices.get(index, [])

        def bound(state: CallState) -> Step:
            values, table = state.values, state.table

            def run() -> None:
                tensor = values[index] = make()
                address = tensor.data_ptr()
                for table_index in table_indices:
                    table[table_index] = address

            return run

        return bound

    def _add(self, make: MakeStep, name: str) -> None:
        self._makers.append(make)
        self._names.append(name)

    def _name(self, step: Launch | ExternCall | DrawSeeds) -> str:
        if isinstance(step, Launch):
            return self._program.plan.kernel_names[step.kernel]
        return type(step).__name__

    def _arena_index(self, view: View) -> int:
        index = self._arena_indices.get(view)
        if index is None:
            index = self._arena_indices[view] = self.new_value()
            self._arena_views.append((index, view))
        return index

    def _step(self, step: Launch | ExternCall | DrawSeeds) -> MakeStep:
        match step:
            case Launch():
                return self._launch(step)
            case ExternCall():
                return self._extern(step)
            case DrawSeeds():
                return self._draw(step)

    def _draw(self, step: DrawSeeds) -> MakeStep:
        buffers = [self._layout.buffers[name] for name in step.buffers]
        for buffer in buffers:
            self._known_layouts[buffer.index] = ((1,), (1,))
        seed_indices = [
            (s.index, self._layout.table.table_indices.get(s.index, [])) for s in buffers
        ]
        device = self._program.captured.device

        def make(state: CallState) -> Step:
            def run() -> None:
                seeds = draw_seeds(len(seed_indices), device)
                for (index, found), seed in zip(seed_indices, seeds, strict=True):
                    state.values[index] = seed
                    address = seed.data_ptr()
                    for table_index in found:
                        state.table[table_index] = address

            return run

        return make

    def _launch(self, step: Launch) -> MakeStep:
        buffers = [self._layout.buffers[name] for name in step.buffers]
        variants = bind_variants(
            self._program.kernels[step.kernel],
            [buffer.size_elems for buffer in buffers],
            tuple(size.evaluate(self._layout.sizes) for size in step.sizes),
        )
        first = self._layout.table.firsts[self._launches]
        self._launches += 1
        if len(variants) > 1:
            kept = self._layout.table.kept
            late = frozenset(at for at, buffer in enumerate(buffers) if buffer.index in kept)
            choice = GuardedLaunch(variants, first, late, position=len(self._makers))
            self._guarded.append(choice)
            return choice.bound
        (only,) = variants
        offset = first * POINTER_BYTES
        return lambda state: only.kernel(ctypes.addressof(state.table) + offset, state.context)

    def _extern(self, step: ExternCall) -> MakeStep:
        if step.choices:
            return self._user_kernel(step)
        node = self._node(step)
        found = [self._argument(step, node, number) for number in range(len(step.args))]
        for view, (_, items) in zip(step.args, found, strict=True):
            self._drop_formed(self._layout.view(view), items)
        formed = [item for _, items in found for item in items]
        indices = [index for index, _ in found]
        function, pick = node.call_on(self._values, indices)
        overwriting = node.overwriting()
        if overwriting is not None and self._is_dying(step, indices):
            function = overwriting
        if self._program.is_deterministic:
            function = with_deterministic_kernels(function)
        results = [None if r is None else self._layout.view(r) for r in step.results]
        kept = [
            (number, self._extern_result(view, node.may_alias))
            for number, view in enumerate(results)
            if view is not None
        ]
        if node.gives_one and len(kept) == 1:
            return lambda state: extern_of_one(state, function, pick, formed, kept[0][1])
        return lambda state: extern_of_several(state, node, (function, pick), formed, kept)

    def _is_dying(self, step: ExternCall, indices: list[int]) -> bool:
        """True if a step is the last one to read its second tensor, whose memory is its own.

        Each result of an extern step has memory of its own, as kernels may write into it.
        """
        buffers = [self._layout.view(view).buffer for view in step.args]
        second = buffers.pop(_OVERWRITTEN)
        is_result = second.kind is BufferKind.EXTERN and indices[_OVERWRITTEN] == second.index
        return is_result and second not in buffers and second.index in self._dropped

    def _user_kernel(self, step: ExternCall) -> MakeStep:
        """A launch of the user's kernel that a node of the captured graph stands for."""
        # Few programs have such kernels, and clients should start quickly.
        from kernelfarm.client.runtime.user_kernels import (  # noqa: PLC0415
            UserKernelLaunch,
            sized_layout,
        )

        graph, traced_sizes = self._program.captured.graph, self._layout.traced_sizes
        node = graph.nodes[step.node] if 0 <= step.node < len(graph.nodes) else None
        if node is None or node.op != step.op or node.op != USER_KERNEL_OP:
            raise InvalidGraphError(
                f"plan: kernel of a user for node {step.node}, which is"
                f" {node.op if node else 'missing'}; expected {USER_KERNEL_OP}"
            )
        views = [self._layout.view(view) for view in step.args]
        extents = [view.buffer.size_elems for view in views]
        types = graph.types()
        found = []
        for view, value in zip(views, uses_of(node), strict=True):
            shape, strides = sized_layout(types[value], traced_sizes)
            is_as_traced = view.is_whole(shape, strides) or (view.shape, view.strides) == (
                shape,
                strides,
            )
            form = partial(in_own_storage, shape, strides)
            found.append(self.value_index(view) if is_as_traced else self.formed(view, form))
        kernels = self._program.kernels
        variants = [(choice.configuration, kernels[choice.kernel]) for choice in step.choices]
        for view, (_, items) in zip(views, found, strict=True):
            self._drop_formed(view, items)
        launch = UserKernelLaunch(node, variants, extents, traced_sizes, self._program)
        formed = [item for _, items in found for item in items]
        pick = picker([index for index, _ in found])
        results = [None if r is None else self._layout.view(r) for r in step.results]
        kept = [(n, self._extern_result(v, False)) for n, v in enumerate(results) if v is not None]
        return lambda state: launched_kernel(state, launch, pick, formed, kept)

    def _argument(
        self, step: ExternCall, node: ExternNode, number: int
    ) -> tuple[int, list[Formed]]:
        view = self._layout.view(step.args[number])
        if node.needs_own_storage and view.buffer.kind is not BufferKind.INPUT:
            # The operator's offset refers to the traced layout, and the plan may use another one.
            return self.formed(view, partial(in_own_storage, *node.traced_layout(number)))
        if node.widens_elements:
            return self.formed(view, on_whole_units)
        must_be_contiguous = node.was_contiguous(number) and not step.is_contraction
        if must_be_contiguous and not is_contiguous(view.shape, view.strides):
            return self.formed(view, torch.Tensor.contiguous)
        return self.value_index(view)

    def _drop_formed(self, view: View, formed: list[Formed]) -> None:
        """Drops what is formed for this step alone, if it holds much memory."""
        if view.buffer.kind in self._dropped_kinds and is_large(view.buffer):
            self._dropped += [index for index, _, _ in formed]

    def _node(self, step: ExternCall) -> ExternNode:
        traced = self._program.captured.nodes
        if not 0 <= step.node < len(traced):
            raise InvalidGraphError(
                f"plan: extern step for node {step.node}; the captured graph has {len(traced)}"
            )
        own = wire_name(traced[step.node].target)
        if own != step.op:
            raise InvalidGraphError(
                f"plan: extern step {step.op} for node {step.node}, which is {own}; expected the"
                " node's own operator"
            )
        node = ExternNode(traced[step.node], self._layout.traced_sizes)
        if node.has_bias and node.tensor_count == len(step.args) + 1:
            node.leave_out_bias()
        if node.tensor_count != len(step.args):
            raise InvalidGraphError(
                f"plan: {len(step.args)} tensors for {own}, which takes {node.tensor_count}"
            )
        return node

    def _extern_result(self, view: View, may_alias: bool) -> ExternResult:
        buffer, shape, strides = view.buffer, view.shape, view.strides
        if buffer.kind is not BufferKind.EXTERN:
            index, formed = self.value_index(view)
            return ExternResult(view, index, formed=formed, is_stored=True)
        is_whole = view.span_elems() == buffer.size_elems and view.is_whole(shape, strides)
        if is_whole:
            self._known_layouts[buffer.index] = (shape, strides)
        table_indices = self._layout.table.table_indices.get(buffer.index, [])
        return ExternResult(view, buffer.index, table_indices, can_alias=is_whole and not may_alias)


def _dropping(indices: tuple[int, ...], state: CallState) -> Step:
    values = state.values

    def run() -> None:
        for index in indices:
            values[index] = None

    return run
