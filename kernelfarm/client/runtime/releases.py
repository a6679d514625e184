"""When a call can drop tensors: the framework then uses their memory for later results.

A dropped tensor's memory is used again in the order of the stream, so kernels that were launched
but have not run yet still read the old elements.
"""

from __future__ import annotations

from kernelfarm.client.runtime.layout import Layout
from kernelfarm.client.runtime.views import SizedBuffer
from kernelfarm.ir.plan_memory import buffer_uses
from kernelfarm.ir.program_ir import BufferKind, Plan

MIN_DROPPED_BYTES = 1 << 12
"""Judgement: a tensor of less than a page stays until the end of the call: dropping takes time."""


def is_large(buffer: SizedBuffer) -> bool:
    """True if a buffer's memory is worth dropping early."""
    return buffer.size_elems * buffer.dtype.itemsize >= MIN_DROPPED_BYTES


def last_uses(plan: Plan, layout: Layout, *, with_inputs: bool) -> dict[int, list[int]]:
    """By step, the large tensors that no later step uses and that no output views.

    These are results of extern steps and temporaries that are apart from the arena, with
    `with_inputs` inputs, too. Keys are positions of steps, values are indices of buffers.
    """
    kinds = (BufferKind.EXTERN, BufferKind.INPUT) if with_inputs else (BufferKind.EXTERN,)
    found: dict[int, list[int]] = {}
    for name, (_, number) in buffer_uses(plan).items():
        buffer = layout.buffers[name]
        is_dropped = buffer.kind in kinds or buffer.is_apart
        if is_dropped and is_large(buffer) and number < len(plan.steps):
            found.setdefault(number, []).append(buffer.index)
    return found
