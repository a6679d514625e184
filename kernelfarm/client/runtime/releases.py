"""When a call can drop results of extern steps: the framework then reuses their memory.

A dropped tensor's memory is used again in the order of the stream, so kernels that were launched
but have not run yet still read the old elements.
"""

from __future__ import annotations

from kernelfarm.client.runtime.layout import Layout
from kernelfarm.client.runtime.views import SizedBuffer
from kernelfarm.ir.plan_memory import buffer_uses
from kernelfarm.ir.program_ir import BufferKind, Plan

MIN_RELEASED_BYTES = 1 << 14
"""Judgement: a smaller result stays until the end of the call, because dropping takes time too."""


def is_large(buffer: SizedBuffer) -> bool:
    """True if a buffer's memory is worth dropping early."""
    return buffer.size_elems * buffer.dtype.itemsize >= MIN_RELEASED_BYTES


def last_uses(plan: Plan, layout: Layout) -> dict[int, list[int]]:
    """By step, the large extern results that no later step uses and that no output views.

    Keys are positions of steps, values are indices of buffers.
    """
    found: dict[int, list[int]] = {}
    for name, (_, number) in buffer_uses(plan).items():
        buffer = layout.buffers[name]
        if buffer.kind is BufferKind.EXTERN and is_large(buffer) and number < len(plan.steps):
            found.setdefault(number, []).append(buffer.index)
    return found
