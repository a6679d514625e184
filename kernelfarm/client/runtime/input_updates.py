"""Inputs that a program updates: most of them are written by kernels, the others are copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.runtime.layout import Layout
from kernelfarm.client.runtime.picks import Formed
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.steps import StepBuilder
from kernelfarm.errors import InternalError
from kernelfarm.ir.program_ir import BufferKind


def updated_arguments(captured: CapturedGraph) -> frozenset[int]:
    """The positions of the arguments that a program updates."""
    sources = (captured.sources[update.input] for update in captured.graph.updates)
    return frozenset(source for source in sources if isinstance(source, int))


class InputUpdates:
    """Copies updated inputs into the caller's tensors where kernels have not written them.

    `outputs` are the program's outputs that are updates; they are not returned to the caller. If
    the plan writes to the input and the kernels got the caller's own tensor (not a copy in another
    layout or on another device), no copy is needed.
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
                raise InternalError(
                    f"the program updates input {update.input}, which is not an argument"
                )
            if view.buffer.kind is BufferKind.INPUT and view.buffer.position == update.input:
                self._in_place.append((argument, view.buffer.index))
            else:
                value_index, formed = builder.value_index(view)
                self._apart.append((argument, value_index))
                self._formed += formed

    def finish(self, values: list[Any], args: Sequence[Any]) -> None:
        """Copies the remaining updates, after the steps."""
        for argument, index in self._in_place:
            written = values[index]
            if written is not args[argument]:
                args[argument].detach().copy_(written)
        for value_index, source, form in self._formed:
            values[value_index] = form(values[source])
        for argument, value_index in self._apart:
            args[argument].detach().copy_(values[value_index])
