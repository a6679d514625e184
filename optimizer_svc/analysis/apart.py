"""Temporaries that have memory of their own, because the arena would raise the peak of a call.

The arena exists during the whole call, and is as large as all temporaries of the step at which they
take most. Where results of the framework and outputs take most, few of them may be alive. Each of
them that is allocated for its own life lowers the peak, and costs a call an allocation.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import add, le

from kernelfarm.ir.plan_memory import LiveBytes
from kernelfarm.ir.program_ir import Buffer, BufferKind, Plan
from kernelfarm.ir.work_budget import spend

MIN_BYTES = 1 << 16
"""Judgement: a smaller temporary saves less than its allocation costs."""
TOLERANCE = 32
"""A peak may exceed its lower bound by one part of so many."""
MAX_APART = 256
"""The number of temporaries that are apart at most: each costs a call some microseconds."""


def choose_apart(
    plan: Plan, sizes: Mapping[str, int], least_bytes: int = MIN_BYTES
) -> frozenset[str]:
    """The names of the temporaries of at least so many bytes that should be apart.

    The largest one at the step at which the arena is fullest is taken out of the arena, until the
    peak is near its lower bound.
    """
    work = _Choice(plan, sizes, least_bytes)
    before = work.peaks
    found: set[str] = set()
    while not work.is_near_bound and len(found) < MAX_APART:
        buffer = work.largest()
        if buffer is None:
            break
        work.take_out(buffer)
        found.add(buffer.name)
    is_better = any(
        new < old - old // TOLERANCE for new, old in zip(work.peaks, before, strict=True)
    )
    return frozenset(found) if is_better else frozenset()


class _Choice:
    """The memory of a call at each step: in the arena, and beside it.

    A backward call drops its inputs after their last uses, others keep them. So there are two
    states of the memory beside the arena: without the inputs, and with each until its last use.
    """

    def __init__(self, plan: Plan, sizes: Mapping[str, int], least_bytes: int) -> None:
        self._live = live = LiveBytes(plan, sizes)
        temporaries = [b for b in plan.buffers if b.kind is BufferKind.TEMPORARY]
        spend(len(plan.buffers) + live.count)
        made = live.of(b for b in plan.buffers if b.kind in (BufferKind.EXTERN, BufferKind.OUTPUT))
        inputs = live.until_last_use(b for b in plan.buffers if b.kind is BufferKind.INPUT)
        self._arena = live.of(temporaries)
        self._beside = made, list(map(add, made, inputs))
        self._limits = [self._limit(beside) for beside in self._beside]
        self._candidates = [b for b in temporaries if live.size(b) >= least_bytes]

    def _limit(self, beside: list[int]) -> int:
        least: int = max(map(add, self._arena, beside))
        return least + least // TOLERANCE

    @property
    def is_near_bound(self) -> bool:
        """True if no peak exceeds its lower bound by more than the tolerance."""
        return all(map(le, self.peaks, self._limits))

    @property
    def peaks(self) -> list[int]:
        """The bytes of a call in both states, if the arena is as small as temporaries allow."""
        return [max(self._arena) + max(beside) for beside in self._beside]

    def largest(self) -> Buffer | None:
        """The largest candidate in the arena at the step at which it is fullest."""
        spend(len(self._candidates) + len(self._arena))
        step = max(range(len(self._arena)), key=self._arena.__getitem__)
        alive = []
        for buffer in self._candidates:
            first, last = self._live.life(buffer)
            if first <= step <= last:
                alive.append(buffer)
        return max(alive, key=self._live.size, default=None)

    def take_out(self, buffer: Buffer) -> None:
        """Gives a candidate memory of its own."""
        self._candidates.remove(buffer)
        size = self._live.size(buffer)
        first, last = self._live.life(buffer)
        spend(last - first)
        for step in range(first, last + 1):
            self._arena[step] -= size
            for beside in self._beside:
                beside[step] += size
