"""Inputs that a program changes: usually its kernels have written them when its steps are over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelfarm.client.runtime.layout import Layout
from kernelfarm.client.runtime.picks import Formed
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.steps import StepBuilder
from kernelfarm.errors import InternalError
from kernelfarm.ir.program_ir import BufferKind


class InputUpdates:
    """Brings to the caller's tensors what a program stores in its inputs.

    `outputs` are the outputs of the program that are such, which nobody is handed. Nothing is
    copied where the plan writes to the input and the kernels got the caller's own tensor: not a
    copy in another layout or on another device.
    """

    def __init__(self, program: BoundProgram, layout: Layout, builder: StepBuilder) -> None:
        self.outputs = frozenset(u.output for u in program.captured.graph.updates)
        self._in_place: list[tuple[int, int]] = []
        self._apart: list[tuple[int, int]] = []
        self._formed: list[Formed] = []
        for update in program.captured.graph.updates:
            argument = program.captured.sources[update.input]
            view = layout.results[update.output].view
            if not isinstance(argument, int) or view is None:
                raise InternalError(f"input {update.input} is no argument that can change")
            if view.buffer.kind is BufferKind.INPUT and view.buffer.position == update.input:
                self._in_place.append((argument, view.buffer.index))
            else:
                value_index, formed = builder.value_index(view)
                self._apart.append((argument, value_index))
                self._formed += formed

    def finish(self, values: list[Any], args: Sequence[Any]) -> None:
        """Copies what is not in its place, after the steps."""
        for argument, index in self._in_place:
            written = values[index]
            if written is not args[argument]:
                args[argument].detach().copy_(written)
        for value_index, source, form in self._formed:
            values[value_index] = form(values[source])
        for argument, value_index in self._apart:
            args[argument].detach().copy_(values[value_index])
