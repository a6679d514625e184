"""The memory that a plan needs beside its inputs and constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from kernelfarm.ir.program_ir import Buffer, BufferKind, DrawSeeds, Launch, Plan, Step, TensorView


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """What a call allocates, for one assignment of the sizes.

    The arena exists from the start of a call, an output from its first use, an extern result and a
    temporary that is apart from the first to the last use. `peak_bytes` is what all of them take at
    `peak_step`, where they take most; `output_bytes`, `extern_bytes` and `apart_bytes` are the
    outputs, extern results and temporaries that are apart of that step. `least_arena_bytes` and
    `least_bytes` are lower bounds of arena and peak for this order of steps: no arena is smaller
    than the temporaries in it that are alive at one step.
    """

    arena_bytes: int
    output_bytes: int
    extern_bytes: int
    apart_bytes: int
    peak_step: int
    least_arena_bytes: int
    least_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a call takes at a time."""
        return self.arena_bytes + self.output_bytes + self.extern_bytes + self.apart_bytes


def plan_memory(plan: Plan, sizes: Mapping[str, int]) -> PlanMemory:
    """The memory of a plan for values of its size symbols."""
    live = LiveBytes(plan, sizes)
    temporaries = [b for b in plan.buffers if b.kind is BufferKind.TEMPORARY]
    temporary = live.of([b for b in temporaries if not b.is_apart])
    apart = live.of([b for b in temporaries if b.is_apart])
    extern = live.of([b for b in plan.buffers if b.kind is BufferKind.EXTERN])
    output = live.of([b for b in plan.buffers if b.kind is BufferKind.OUTPUT])
    beside = [sum(kinds) for kinds in zip(apart, extern, output, strict=True)]
    peak_step = max(range(len(beside)), key=beside.__getitem__)
    return PlanMemory(
        arena_bytes=arena_bytes(plan, sizes),
        output_bytes=output[peak_step],
        extern_bytes=extern[peak_step],
        apart_bytes=apart[peak_step],
        peak_step=peak_step,
        least_arena_bytes=max(temporary),
        least_bytes=max(t + b for t, b in zip(temporary, beside, strict=True)),
    )


def arena_bytes(plan: Plan, sizes: Mapping[str, int]) -> int:
    """The bytes of the arena for a client that gives temporaries that are apart their own memory.

    These lie behind all others, so that the arena ends where the first of them begins.
    """
    apart = (b.offset_bytes for b in plan.buffers if b.is_apart)
    begins = (offset.evaluate(sizes) for offset in apart if offset is not None)
    return min([plan.arena_bytes.evaluate(sizes), *begins])


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


class LiveBytes:
    """The bytes of buffers that are alive at each step of a plan, and behind the last one."""

    def __init__(self, plan: Plan, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._uses = buffer_uses(plan)
        self.count = len(plan.steps) + 1

    def life(self, buffer: Buffer) -> tuple[int, int]:
        """The first and the last step at which a buffer that is used has memory."""
        first, last = self._uses[buffer.name]
        return first, self.count - 1 if buffer.kind is BufferKind.OUTPUT else last

    def size(self, buffer: Buffer) -> int:
        """The bytes of a buffer."""
        return buffer.size_elems.evaluate(self._sizes) * buffer.dtype.itemsize_bytes

    def of(self, buffers: Iterable[Buffer]) -> list[int]:
        """By step, the sum of the buffers that are alive."""
        changes = [0] * (self.count + 1)
        for buffer in buffers:
            if buffer.name in self._uses:
                first, last = self.life(buffer)
                changes[first] += self.size(buffer)
                changes[last + 1] -= self.size(buffer)
        return list(accumulate(changes[: self.count]))

    def until_last_use(self, buffers: Iterable[Buffer]) -> list[int]:
        """By step, the sum of the buffers that this or a later step uses."""
        changes = [0] * (self.count + 1)
        for buffer in buffers:
            if buffer.name in self._uses:
                changes[0] += self.size(buffer)
                changes[self.life(buffer)[1] + 1] -= self.size(buffer)
        return list(accumulate(changes[: self.count]))
