"""Stores results in the memory of operands that are read for the last time.

That needs less memory, and a processor's cache holds the line that is written. It needs a form of
the kernel that reads and writes one buffer. A kernel gets this form if all its launches can use it.
If only some can, they use it where the program needs most memory: each further form of a kernel is
compiled, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.program_ir import BufferKind
from kernelfarm.ir.work_budget import spend
from optimizer_svc.ir.built_steps import BuiltSteps, PlannedLaunch
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.memory_uses import MADE_KINDS, Life, Memories, StepUse, live_bytes
from optimizer_svc.kernels.distinct_kernels import DistinctKernels
from optimizer_svc.kernels.in_place import Pair, in_place_pairs, stored_in_place

MIN_BYTES = 1 << 12
"""Results of less than a page have memory of their own, which costs nothing."""
MIN_FORM_BYTES = 1 << 20
"""If only some launches can use it, another form of a kernel must save so much in each."""
MAX_PEAKS = 32
"""The number of peaks that are lowered by further forms of kernels."""

Granted = dict[int, tuple[Pair, ...]]
"""The pairs of each launch, by its position among the steps."""


def compute_in_place(
    chosen: Materialization, built: BuiltSteps, least_bytes: int = MIN_BYTES
) -> BuiltSteps:
    """The steps, with results of at least so many likely bytes in the memory of operands."""
    work = _Sharing(chosen, built, least_bytes)
    possible = work.granted(work.candidates())
    if not possible:
        return built
    granted = _in_every_launch(built, possible)
    work.lower_peaks(granted, possible)
    granted = work.granted(granted)
    return _rewritten(built, granted, work.taken(granted)) if granted else built


def _in_every_launch(built: BuiltSteps, possible: Granted) -> Granted:
    """The pairs that all launches of a kernel have in common."""
    common: dict[int, set[Pair]] = {}
    for number, step in enumerate(built.steps):
        if isinstance(step, PlannedLaunch):
            mine = set(possible.get(number, ()))
            common[step.kernel] = common.get(step.kernel, mine) & mine
    found = {}
    for number, pairs in possible.items():
        step = built.steps[number]
        if isinstance(step, PlannedLaunch) and common[step.kernel]:
            found[number] = tuple(pair for pair in pairs if pair in common[step.kernel])
    return found


def _rewritten(built: BuiltSteps, granted: Granted, taken: Mapping[int, int]) -> BuiltSteps:
    distinct = DistinctKernels()
    steps: list[PlannedLaunch | Node] = []
    notes: dict[str, list[int]] = {}
    forms: dict[tuple[int, tuple[Pair, ...]], tuple[int, tuple[tuple[int, ...], ...]]] = {}
    for number, step in enumerate(built.steps):
        if not isinstance(step, PlannedLaunch):
            steps.append(step)
            continue
        key = step.kernel, granted.get(number, ())
        if key not in forms:
            kernel, positions = stored_in_place(built.kernels[step.kernel], key[1])
            forms[key] = distinct.number(kernel), positions
        made, positions = forms[key]
        values = tuple(step.values[old[0]] for old in positions)
        steps.append(replace(step, kernel=made, values=values))
        if key[1]:
            counts = notes.setdefault(distinct.kernels[made].name, [len(key[1]), 0])
            counts[1] += 1
    return replace(
        built,
        kernels=tuple(distinct.kernels),
        steps=tuple(steps),
        notes=(*built.notes, *_notes(notes)),
        shared=taken,
    )


def _notes(counts: Mapping[str, Sequence[int]]) -> Iterator[str]:
    for name, (results, launches) in counts.items():
        word = "result" if results == 1 else "results"
        yield (
            f"kernel {name}: {results} {word} in the memory of operands that are not read again"
            f" (launches: {launches})"
        )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A pair of a launch, with the memories of its result and its operand."""

    pair: Pair
    result: int
    operand: int


class _Sharing:
    """Which results may take over which operand's memory, and what that saves."""

    def __init__(self, chosen: Materialization, built: BuiltSteps, least_bytes: int) -> None:
        self._built = built
        self._memories = memories = Memories(chosen)
        self._uses = memories.built_uses(built)
        self._lives = memories.lives(self._uses)
        self._least_bytes = least_bytes
        self._pairs = [in_place_pairs(kernel) for kernel in built.kernels]
        self._writers = _writers(self._uses)

    def candidates(self) -> Granted:
        """Every pair of every launch whose operand is not used again."""
        found = {}
        for number, step in enumerate(self._built.steps):
            if isinstance(step, PlannedLaunch):
                spend(1 + len(self._pairs[step.kernel]))
                pairs = self._pairs[step.kernel]
                usable = tuple(p for p in pairs if self._is_usable(self._of(step, p), number))
                if usable:
                    found[number] = usable
        return found

    def granted(self, wanted: Granted) -> Granted:
        """Those of the pairs that hold together: each result and each operand is in one."""
        kinds: dict[int, BufferKind] = {}
        found: Granted = {}
        for number in sorted(wanted):
            step = self._built.steps[number]
            if not isinstance(step, PlannedLaunch):
                continue
            used: set[int] = set()
            pairs = []
            for pair in sorted(wanted[number], key=lambda p: self._rank(step, p, kinds)):
                link = self._of(step, pair)
                kind = self._joint_kind(link, kinds)
                if kind is None or used & {link.result, link.operand}:
                    continue
                used |= {link.result, link.operand}
                kinds[link.result] = kinds[link.operand] = kind
                pairs.append(pair)
            if pairs:
                found[number] = tuple(sorted(pairs))
        return found

    def taken(self, granted: Granted) -> dict[int, int]:
        """For each memory that is shared, the one that it becomes."""
        owner: dict[int, int] = {}

        def find(memory: int) -> int:
            while memory in owner:
                memory = owner[memory]
            return memory

        for number in sorted(granted):
            for link in self._links(number, granted[number]):
                first, second = find(link.operand), find(link.result)
                if self._memories.kind(second) is BufferKind.OUTPUT:
                    first, second = second, first
                owner[second] = first
        return {memory: find(memory) for memory in owner}

    def lower_peaks(self, granted: Granted, possible: Granted) -> None:
        """Adds pairs to launches at which most memory is alive, until that has no effect.

        The arena is apart from the memory that the framework allocates, so it has its own peak.
        """
        for kinds in ((BufferKind.TEMPORARY,), MADE_KINDS):
            for _ in range(MAX_PEAKS):
                live = self._live(granted, kinds)
                peak = max(range(len(live)), key=live.__getitem__)
                large = self._large(peak, possible.get(peak, ()))
                if not set(large) - set(granted.get(peak, ())):
                    break
                granted[peak] = tuple(sorted({*large, *granted.get(peak, ())}))

    def _large(self, number: int, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
        """The pairs for which another form of the kernel is worth its compilation."""
        least = MIN_FORM_BYTES if self._least_bytes else 0
        size = self._memories.likely_bytes
        return tuple(link.pair for link in self._links(number, pairs) if size(link.result) >= least)

    def _live(self, granted: Granted, kinds: Sequence[BufferKind]) -> list[int]:
        """The bytes of these kinds that are alive at each step."""
        spend(len(self._lives))
        lives, sizes = dict(self._lives), {}
        owner = self.taken(granted)
        for memory, own in self._lives.items():
            kept = owner.get(memory, memory)
            if self._memories.kind(kept) in kinds:
                sizes[kept] = self._memories.likely_bytes(kept)
            if kept != memory:
                both = lives[kept]
                lives[kept] = Life(min(both.first, own.first), max(both.last, own.last))
        return live_bytes(lives, sizes, len(self._uses))

    def _links(self, number: int, pairs: Sequence[Pair]) -> Iterator[_Candidate]:
        step = self._built.steps[number]
        if isinstance(step, PlannedLaunch):
            yield from (self._of(step, pair) for pair in pairs)

    def _of(self, step: PlannedLaunch, pair: Pair) -> _Candidate:
        of = self._memories.of
        return _Candidate(pair, of(step.values[pair.result]), of(step.values[pair.operand]))

    def _is_usable(self, link: _Candidate, number: int) -> bool:
        """True if the operand ends and the result begins with this launch, and both are large."""
        memories = self._memories
        kinds = memories.kind(link.result), memories.kind(link.operand)
        is_made = kinds[1] in MADE_KINDS and kinds[0] in (BufferKind.TEMPORARY, BufferKind.OUTPUT)
        return (
            is_made
            and kinds != (BufferKind.OUTPUT, BufferKind.EXTERN)
            and self._lives[link.operand].last == number
            and self._lives[link.result].first == number
            and self._writers[link.result] == 1
            and memories.likely_bytes(link.result) >= self._least_bytes
        )

    def _joint_kind(self, link: _Candidate, kinds: Mapping[int, BufferKind]) -> BufferKind | None:
        """The kind of the memory that both would share; None if there is none.

        The framework allocates its results, so that none of them can be an output's memory.
        """
        both = {
            kinds.get(memory, self._memories.kind(memory)) for memory in (link.operand, link.result)
        }
        if both == {BufferKind.OUTPUT, BufferKind.EXTERN}:
            return None
        both.discard(BufferKind.TEMPORARY)
        return both.pop() if both else BufferKind.TEMPORARY

    def _rank(
        self, step: PlannedLaunch, pair: Pair, kinds: Mapping[int, BufferKind]
    ) -> tuple[bool, Pair]:
        """Temporaries before extern results, whose life would grow longer."""
        operand = self._of(step, pair).operand
        kind = kinds.get(operand, self._memories.kind(operand))
        return kind is BufferKind.EXTERN, pair


def _writers(uses: Sequence[StepUse]) -> dict[int, int]:
    found: dict[int, int] = {}
    for use in uses:
        for memory in use.writes:
            found[memory] = found.get(memory, 0) + 1
    return found
