"""Temporaries that have memory of their own, because the arena would raise the peak of a call.

The arena exists during the whole call, and is as large as all temporaries of the step at which they
take most. Where results of the framework and outputs take most, few of them may be alive. Each of
them that is allocated for its own life lowers the peak, and costs a call an allocation.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import add

from kernelfarm.ir.plan_memory import LiveBytes
from kernelfarm.ir.program_ir import Buffer, BufferKind, Plan
from kernelfarm.ir.work_budget import spend

MIN_BYTES = 1 << 16
"""Judgement: a smaller temporary saves less than its allocation costs."""
TOLERANCE = 16
"""The peak may exceed its lower bound by one part of so many."""
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
    before = work.peak_bytes
    found: set[str] = set()
    while work.peak_bytes > work.limit_bytes and len(found) < MAX_APART:
        buffer = work.largest()
        if buffer is None:
            break
        work.take_out(buffer)
        found.add(buffer.name)
    is_better = work.peak_bytes < before - before // TOLERANCE
    return frozenset(found) if is_better else frozenset()


class _Choice:
    """The memory of a call at each step, in the arena and beside it."""

    def __init__(self, plan: Plan, sizes: Mapping[str, int], least_bytes: int) -> None:
        self._live = live = LiveBytes(plan, sizes)
        temporaries = [b for b in plan.buffers if b.kind is BufferKind.TEMPORARY]
        made = (BufferKind.EXTERN, BufferKind.OUTPUT)
        spend(len(plan.buffers) + live.count)
        self._arena = live.of(temporaries)
        self._beside = live.of(b for b in plan.buffers if b.kind in made)
        least = max(map(add, self._arena, self._beside))
        self.limit_bytes = least + least // TOLERANCE
        self._candidates = [b for b in temporaries if live.size(b) >= least_bytes]

    @property
    def peak_bytes(self) -> int:
        """The bytes of a call if the arena is as small as its temporaries allow."""
        return max(self._arena) + max(self._beside)

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
            self._beside[step] += size
