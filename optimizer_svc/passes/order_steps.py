"""Orders independent steps so that less memory is alive at a time.

Two moves lower the peak. A step whose result is needed late, and that is the last reader of little,
runs just before its first reader. A step that ends more memory than it begins runs as soon as its
operands exist. A value that was just written and that the cache holds does not wait longer for its
reader than `MAX_DELAY` steps. If the peak gets lower by less than a part in `MIN_GAIN`, the order
stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.ir.fused import Fusion
from optimizer_svc.ir.group import Group
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.memory_uses import MADE_KINDS, Life, Memories, StepUse, live_bytes

MAX_DELAY = 4
"""Judgement: the traffic of so many steps leaves a value in the cache that was in it before."""
MIN_GAIN = 64
"""The peak must get lower by one part of so many: another order has no other advantage."""

Order = tuple[int, ...]
"""Steps by their numbers in the old order."""


def order_steps(chosen: Materialization, fusion: Fusion, target: TargetFacts) -> Fusion:
    """The fusion with its steps in the order that needs least memory, or as it is."""
    memories = Memories(chosen)
    uses = memories.group_uses(fusion.steps, fusion.stored)
    work = _Orders(memories, uses, _sources(fusion.steps, uses), target.memory.cache_bytes)
    old = tuple(range(len(uses)))
    late = work.with_late_makers(old)
    candidates = (late, work.with_early_ends(old), work.with_early_ends(late))
    before = work.peak_bytes(old)
    best = min(candidates, key=work.peak_bytes)
    after = work.peak_bytes(best)
    if after > before - before // MIN_GAIN or after >= before:
        return fusion
    moved = sum(number != place for place, number in enumerate(best))
    note = (
        f"order: {moved} steps moved, so that {after} bytes are alive at most instead of {before}"
    )
    return replace(fusion, steps=tuple(fusion.steps[n] for n in best), notes=(*fusion.notes, note))


def _sources(steps: Sequence[Group | Node], uses: Sequence[StepUse]) -> list[frozenset[int]]:
    """For each step the earlier steps that it must follow.

    Extern steps may draw random numbers or have effects, so all but contractions keep their order.
    """
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    last_ordered: list[int] = []
    found = []
    for number, (step, use) in enumerate(zip(steps, uses, strict=True)):
        sources = {w for memory in (*use.reads, *use.writes) for w in writers.get(memory, ())}
        sources.update(r for memory in use.writes for r in readers.get(memory, ()))
        if isinstance(step, Node) and step.attr("is_contraction") is not True:
            sources.update(last_ordered)
            last_ordered = [number]
        for memory in use.reads:
            readers.setdefault(memory, []).append(number)
        for memory in use.writes:
            writers.setdefault(memory, []).append(number)
        spend(1 + len(sources))
        found.append(frozenset(sources - {number}))
    return found


@dataclass(frozen=True, slots=True)
class _Orders:
    """Orders of the steps, and what is alive in each."""

    memories: Memories
    uses: Sequence[StepUse]
    sources: Sequence[frozenset[int]]
    cache_bytes: int

    def peak_bytes(self, order: Order) -> int:
        """The most bytes of temporaries and extern results that are alive at a step."""
        lives = self._lives(order)
        sizes = {memory: self.memories.likely_bytes(memory) for memory in self._made(lives)}
        return max(live_bytes(lives, sizes, len(order)))

    def with_late_makers(self, order: Order) -> Order:
        """The order in which steps run late if that begins more memory later than it keeps."""
        readers: dict[int, set[int]] = {}
        for number, sources in enumerate(self.sources):
            for source in sources:
                readers.setdefault(source, set()).add(number)
        found = list(order)
        for number in reversed(order):
            if number not in readers or not self._begins_more(number):
                continue
            here = found.index(number)
            first = min(found.index(reader) for reader in readers[number])
            spend(1 + len(readers[number]))
            if first > here + 1 and not self._is_hot(found, here):
                found.insert(first - 1, found.pop(here))
        return tuple(found)

    def with_early_ends(self, order: Order) -> Order:
        """The order in which steps that end more memory than they begin run early."""
        found = list(order)
        delays = [0] * len(order)
        places = _Places(self.memories, self.uses, order)
        for here in range(len(found)):
            number = found[here]
            spend(1)
            if self._begun(number, places) >= self._ended(number, places):
                continue
            first = here
            while first > 0 and delays[found[first - 1]] < MAX_DELAY:
                if found[first - 1] in self.sources[number]:
                    break
                first -= 1
            if first < here:
                for passed in found[first:here]:
                    delays[passed] += 1
                found.insert(first, found.pop(here))
                places.renumber(found, first, here)
        return tuple(found)

    def _lives(self, order: Order) -> dict[int, Life]:
        spend(len(order))
        return self.memories.lives([self.uses[number] for number in order])

    def _made(self, lives: dict[int, Life]) -> list[int]:
        return [memory for memory in lives if self.memories.kind(memory) in MADE_KINDS]

    def _begins_more(self, number: int) -> bool:
        """True if a step's results are larger than all its operands that are not inputs."""
        use = self.uses[number]
        return self._bytes(use.writes) > self._bytes(use.reads)

    def _is_hot(self, order: Sequence[int], here: int) -> bool:
        """True if a step reads what one of the last steps wrote, and the cache holds it."""
        recent = {
            memory
            for number in order[max(0, here - MAX_DELAY) : here]
            for memory in self.uses[number].writes
        }
        read = [memory for memory in self.uses[order[here]].reads if memory in recent]
        return 0 < self._bytes(read) <= self.cache_bytes

    def _begun(self, number: int, places: _Places) -> int:
        writes = self._made_of(self.uses[number].writes)
        return self._bytes([memory for memory in writes if places.is_first(number, memory)])

    def _ended(self, number: int, places: _Places) -> int:
        reads = self._made_of(self.uses[number].reads)
        return self._bytes([memory for memory in reads if places.is_last(number, memory)])

    def _bytes(self, memories: Sequence[int]) -> int:
        return sum(map(self.memories.likely_bytes, self._made_of(memories)))

    def _made_of(self, memories: Sequence[int]) -> list[int]:
        """Those of some memories that the program makes; every step may read an input."""
        return [memory for memory in memories if self.memories.kind(memory) in MADE_KINDS]


class _Places:
    """Where each step is in an order that changes."""

    def __init__(self, memories: Memories, uses: Sequence[StepUse], order: Order) -> None:
        self._returned = memories.returned
        self._users: dict[int, list[int]] = {}
        for number, use in enumerate(uses):
            for memory in {*use.reads, *use.writes}:
                self._users.setdefault(memory, []).append(number)
        self._places = [0] * len(order)
        self.renumber(order, 0, len(order) - 1)

    def renumber(self, order: Sequence[int], first: int, last: int) -> None:
        """Notes the places from `first` to `last` of an order."""
        spend(last + 1 - first)
        for place in range(first, last + 1):
            self._places[order[place]] = place

    def is_first(self, number: int, memory: int) -> bool:
        """True if no step before this one uses a memory."""
        here = self._places[number]
        for user in self._users[memory]:
            spend(1)
            if self._places[user] < here:
                return False
        return True

    def is_last(self, number: int, memory: int) -> bool:
        """True if no step behind this one uses a memory, and the program does not return it."""
        here = self._places[number]
        for user in reversed(self._users[memory]):  # a later one, if there is one, is soon found
            spend(1)
            if self._places[user] > here:
                return False
        return memory not in self._returned
