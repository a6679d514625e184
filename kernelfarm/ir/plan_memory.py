"""The memory that a plan needs beside its inputs and constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.ir.program_ir import Buffer, BufferKind, DrawSeeds, Launch, Plan, Step, TensorView


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """What a call allocates, for one assignment of the sizes.

    The arena exists from the start of a call, an output from its first use, an extern result from
    its step to its last use. `peak_bytes` is what all of them take at `peak_step`, where they take
    most; `output_bytes` and `extern_bytes` are the outputs and extern results of that step.
    `least_arena_bytes` and `least_bytes` are lower bounds of arena and peak for this order of
    steps: no arena is smaller than the temporaries that are alive at one step.
    """

    arena_bytes: int
    output_bytes: int
    extern_bytes: int
    peak_step: int
    least_arena_bytes: int
    least_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a call takes at a time."""
        return self.arena_bytes + self.output_bytes + self.extern_bytes


def plan_memory(plan: Plan, sizes: Mapping[str, int]) -> PlanMemory:
    """The memory of a plan for values of its size symbols."""
    uses = buffer_uses(plan)
    count = len(plan.steps) + 1
    temporary = _live_bytes(plan, uses, sizes, (BufferKind.TEMPORARY, count))
    extern = _live_bytes(plan, uses, sizes, (BufferKind.EXTERN, count))
    output = _live_bytes(plan, uses, sizes, (BufferKind.OUTPUT, count))
    apart = [e + o for e, o in zip(extern, output, strict=True)]
    peak_step = max(range(count), key=apart.__getitem__)
    return PlanMemory(
        arena_bytes=plan.arena_bytes.evaluate(sizes),
        output_bytes=output[peak_step],
        extern_bytes=extern[peak_step],
        peak_step=peak_step,
        least_arena_bytes=max(temporary),
        least_bytes=max(t + a for t, a in zip(temporary, apart, strict=True)),
    )


def buffer_uses(plan: Plan) -> dict[str, tuple[int, int]]:
    """The first and the last step that uses each buffer.

    A buffer that an output views is used up to the step behind the last one.
    """
    found: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        for name in buffers_of(step):
            found[name] = found.get(name, (number, number))[0], number
    for output in plan.outputs:
        if isinstance(output, TensorView):
            first, _ = found.get(output.buffer, (len(plan.steps), 0))
            found[output.buffer] = first, len(plan.steps)
    return found


def buffers_of(step: Step) -> tuple[str, ...]:
    """The names of the buffers that a step reads or writes."""
    if isinstance(step, Launch | DrawSeeds):
        return step.buffers
    return tuple(view.buffer for view in (*step.args, *step.results) if view is not None)


def _live_bytes(
    plan: Plan,
    uses: Mapping[str, tuple[int, int]],
    sizes: Mapping[str, int],
    of: tuple[BufferKind, int],
) -> list[int]:
    """The bytes of the buffers of a kind that are alive at each step."""
    kind, count = of
    changes = [0] * (count + 1)
    for buffer in plan.buffers:
        if buffer.kind is kind and buffer.name in uses:
            first, last = uses[buffer.name]
            last = count - 1 if kind is BufferKind.OUTPUT else last
            changes[first] += _bytes(buffer, sizes)
            changes[last + 1] -= _bytes(buffer, sizes)
    live, found = 0, []
    for change in changes[:count]:
        live += change
        found.append(live)
    return found


def _bytes(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    return buffer.size_elems.evaluate(sizes) * buffer.dtype.itemsize_bytes
