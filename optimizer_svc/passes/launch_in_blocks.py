"""Launches kernels for one block of large memory after the other, so that it needs little memory.

Several kernels make and read the scores of attention. If each computes all of them, memory holds
all, which no cache does. Instead, the kernels are launched for a block of scores, then for the next
one, which takes the same memory. What else is launched between them comes before or behind all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.ir.program_ir import BufferKind
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.score_readers import are_read_by_one
from optimizer_svc.analysis.storages import Storage, span_elems
from optimizer_svc.ir.built_steps import BuiltSteps, PlannedLaunch
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.memory_uses import Memories, StepUse
from optimizer_svc.kernels.block_divisions import (
    BlockDivision,
    BlockFamily,
    CausalScores,
    block_division,
)
from optimizer_svc.kernels.block_windows import (
    MemoryStep,
    accumulating,
    block_kernel,
    cleared,
    is_block,
    memory_steps,
)
from optimizer_svc.kernels.distinct_kernels import DistinctKernels


def launch_in_blocks(chosen: Materialization, built: BuiltSteps, target: TargetFacts) -> BuiltSteps:
    """The steps, with those that share large memory launched for one block after the other."""
    if not chosen.blocked or target.attention is None:
        return built
    work = _Blocks(chosen, built, target.attention.block_bytes)
    for family in work.families():
        work.divide(family)
    return work.result()


class _Blocks:
    """The steps so far; positions are those among the steps that were built."""

    def __init__(self, chosen: Materialization, built: BuiltSteps, block_bytes: int) -> None:
        self._chosen, self._built, self._block_bytes = chosen, built, block_bytes
        self._memories = Memories(chosen)
        self._uses = [self._shared_use(use) for use in self._memories.built_uses(built)]
        self._order: list[int] = [*range(len(built.steps))]
        self._runs: dict[int, list[tuple[int, PlannedLaunch]]] = {}
        self._moved: set[int] = set()
        self._distinct = DistinctKernels()
        self._blocks: dict[int, tuple[int, int]] = {}
        self._fresh = 1 + max(chosen.storages)
        self._notes: list[str] = []
        for kernel in built.kernels:
            self._distinct.number(kernel)

    def _memory(self, value: int) -> int:
        memory = self._memories.of(value)
        return self._built.shared.get(memory, memory)

    def _shared_use(self, use: StepUse) -> StepUse:
        own = self._built.shared
        return StepUse(
            tuple(own.get(m, m) for m in use.reads), tuple(own.get(m, m) for m in use.writes)
        )

    def families(self) -> list[BlockFamily]:
        """The launches of each set of memories that are used together."""
        wanted = {
            self._memory(value)
            for value in self._chosen.blocked
            if value in self._chosen.storages
            and self._chosen.storages[value].kind is BufferKind.TEMPORARY
        }
        groups: list[set[int]] = []
        for use in self._uses:
            touched = wanted & {*use.reads, *use.writes}
            if touched:
                joined = [g for g in groups if g & touched]
                groups = [g for g in groups if not g & touched]
                groups.append(touched.union(*joined))
        found = (self._family(frozenset(group)) for group in groups)
        return [family for family in found if family is not None]

    def _family(self, memories: frozenset[int]) -> BlockFamily | None:
        params: dict[int, tuple[str, ...]] = {}
        for position, (step, use) in enumerate(zip(self._built.steps, self._uses, strict=True)):
            if memories.isdisjoint((*use.reads, *use.writes)):
                continue
            if not isinstance(step, PlannedLaunch):
                return None
            kernel = self._built.kernels[step.kernel]
            named = zip(step.values, kernel.params, strict=True)
            params[position] = tuple(p.name for v, p in named if self._memory(v) in memories)
        storages = [self._chosen.storages[memory] for memory in sorted(memories)]
        sizes = {span_elems(storage) for storage in storages}
        if len(sizes) != 1 or self._memories.returned & memories:
            return None
        (elems,) = sizes
        item_bytes = sum(storage.dtype.itemsize_bytes for storage in storages)
        if not elems.is_constant or elems.constant * item_bytes <= self._block_bytes:
            return None
        return BlockFamily(memories, params, elems.constant, item_bytes, self._causal(storages))

    def _causal(self, storages: Sequence[Storage]) -> CausalScores | None:
        """What counts in scores (..., rows, columns) if they all are of causal attention."""
        sides = {storage.shape[-2:] for storage in storages}
        for values, turned in ((self._chosen.causal, False), (self._chosen.turned_causal, True)):
            stored = [value for value in values if value in self._chosen.storages]
            causal = {self._memory(value) for value in stored}
            causal -= {
                self._memory(v) for v in stored if not are_read_by_one(self._chosen.facts, v)
            }
            if len(sides) == 1 and all(storage.value in causal for storage in storages):
                ((rows, columns),) = sides
                return CausalScores(rows.as_int(), columns.as_int(), turned)
        return None

    def divide(self, family: BlockFamily) -> None:
        """Launches a family in blocks if its kernels can compute them."""
        spend(64 * len(family.params))
        steps: dict[int, tuple[MemoryStep, ...]] = {}
        for position, params in family.params.items():
            found = memory_steps(self._kernel(position), params)
            if found is None:
                return
            steps[position] = found
        around = self._around(family)
        division = None if around is None else block_division(family, steps, self._block_bytes)
        local = None if division is None else self._local(family, division)
        if around is None or division is None or local is None:
            return
        count = division.count
        spend(4 * count * len(steps))
        numbers = [self._numbered(local) for _ in range(count)]
        launches = {
            position: self._launches(position, division, local, numbers) for position in steps
        }
        before, behind = around
        first, positions = min(steps), sorted(steps)
        span = [*before, *positions, *behind]
        at = self._order.index(first)
        self._order[at : at + len(span)] = span
        self._moved |= family.params.keys()
        run = [(p, clear) for p in positions for clear in self._cleared(p, division)]
        run += [(p, launches[p][number]) for number in range(count) for p in positions]
        self._runs[first] = run
        self._notes.append(
            f"attention: {len(steps)} kernels for {count} blocks of {division.elems} scores each"
        )

    def _launches(
        self,
        position: int,
        division: BlockDivision,
        local: Mapping[int, int],
        numbers: Sequence[Mapping[int, int]],
    ) -> list[PlannedLaunch]:
        """The launches of a kernel, one for each block.

        The values of memories that are local are `numbers`, those of each block.
        """
        step, kernel = self._built.steps[position], self._kernel(position)
        assert isinstance(step, PlannedLaunch)  # as `_family` found it
        memories = [self._memory(value) for value in step.values]
        named = zip(memories, kernel.params, strict=True)
        own = {param.name: local[memory] for memory, param in named if memory in local}
        windows = division.windows[position]
        made = block_kernel(kernel, windows, own, division.trimmed.get(position, ""))
        adding = accumulating(made) if _sums_windows(kernel, windows) else None
        made, positions = adding or (made, tuple(range(len(kernel.params))))
        form, found = self._distinct.number(made), []
        for number, starts in enumerate(division.starts[position]):
            values = [numbers[number].get(m, v) for m, v in zip(memories, step.values, strict=True)]
            sizes = [starts[name] for name in windows]
            sizes += division.counted[number] if division.counted else ()
            own_values = tuple(values[old] for old in positions)
            found.append(PlannedLaunch(form, own_values, tuple(map(as_expr, sizes))))
        return found

    def _cleared(self, position: int, division: BlockDivision) -> list[PlannedLaunch]:
        """The launch that writes zeros where sums of windows are added; none if none are."""
        step, kernel = self._built.steps[position], self._kernel(position)
        assert isinstance(step, PlannedLaunch)  # as `_family` found it
        if not _sums_windows(kernel, division.windows[position]):
            return []
        named = zip(step.values, kernel.params, strict=True)
        ((value, param),) = [each for each in named if each[1].access is Access.WRITE]
        return [PlannedLaunch(self._distinct.number(cleared(param)), (value,), ())]

    def _local(self, family: BlockFamily, division: BlockDivision) -> dict[int, int] | None:
        """The elements of a block of each memory that the family alone uses.

        None if a block would use more of one of them, such as the sums of rows.
        """
        inside = {*family.params}
        users: dict[int, set[int]] = {}
        for position, use in enumerate(self._uses):
            for memory in (*use.reads, *use.writes):
                users.setdefault(memory, set()).add(position)
        found = dict.fromkeys(family.memories, division.elems)
        for memory, own in users.items():
            is_made = any(memory in self._uses[position].writes for position in own & inside)
            if memory in found or not is_made or len(own) == 1 or not own <= inside:
                continue
            if self._memories.kind(memory) is not BufferKind.TEMPORARY:
                continue
            whole = span_elems(self._chosen.storages[memory])
            if not whole.is_constant or whole.constant % division.count:
                return None
            found[memory] = whole.constant // division.count
            if not all(self._is_block(p, memory, found[memory], division) for p in own):
                return None
        return found

    def _is_block(self, position: int, memory: int, elems: int, division: BlockDivision) -> bool:
        step, kernel = self._built.steps[position], self._kernel(position)
        assert isinstance(step, PlannedLaunch)  # as `_family` found it
        return all(
            is_block(
                kernel, param.name, elems, division.windows[position], division.starts[position]
            )
            for value, param in zip(step.values, kernel.params, strict=True)
            if self._memory(value) == memory
        )

    def _numbered(self, local: Mapping[int, int]) -> dict[int, int]:
        """A number for a block of each memory."""
        found = {}
        for memory, elems in local.items():
            found[memory] = self._fresh
            self._blocks[self._fresh] = memory, elems
            self._fresh += 1
        return found

    def _kernel(self, position: int) -> Kernel:
        step = self._built.steps[position]
        assert isinstance(step, PlannedLaunch)  # as `_family` found it
        return self._built.kernels[step.kernel]

    def _around(self, family: BlockFamily) -> tuple[list[int], list[int]] | None:
        """The other steps between a family's first and last: those before, and those behind it.

        None if one reads what the family makes and makes what the family reads.
        """
        positions = sorted(family.params)
        start = self._order.index(positions[0])
        span = self._order[start : self._order.index(positions[-1]) + 1]
        if [p for p in span if p in family.params] != positions:
            return None
        before: list[int] = []
        behind: list[int] = []
        done: list[int] = []
        for position in span:
            if position in family.params:
                if self._conflicts(position, behind):
                    return None
                done.append(position)
            elif isinstance(self._built.steps[position], PlannedLaunch) and not self._conflicts(
                position, (*done, *behind)
            ):
                before.append(position)
            else:
                behind.append(position)
        return before, behind

    def _conflicts(self, position: int, others: Sequence[int]) -> bool:
        """True if a step must stay behind one of others: one writes what the other one uses."""
        own = self._uses[position]
        for other in others:
            use = self._uses[other]
            if not {*own.writes}.isdisjoint((*use.reads, *use.writes)):
                return True
            if not {*own.reads}.isdisjoint(use.writes):
                return True
        return False

    def result(self) -> BuiltSteps:
        """The steps with all families in blocks."""
        if not self._runs:
            return self._built
        steps: list[PlannedLaunch | Node] = []
        sources: list[int] = []
        for position in self._order:
            if position in self._runs:
                steps += [launch for _, launch in self._runs[position]]
                sources += [source for source, _ in self._runs[position]]
            elif position not in self._moved:
                steps.append(self._built.steps[position])
                sources.append(position)
        return _with_used_kernels(
            replace(
                self._built,
                kernels=tuple(self._distinct.kernels),
                steps=tuple(steps),
                notes=(*self._built.notes, *self._notes),
                sources=tuple(sources),
                blocks=self._blocks,
            )
        )


def _sums_windows(kernel: Kernel, windows: Mapping[str, int]) -> bool:
    """True if a kernel's sums are those of windows, to which others are added."""
    return any(axis.name in windows for axis in kernel.reduction)


def _with_used_kernels(built: BuiltSteps) -> BuiltSteps:
    """The steps without kernels that nothing launches, in order of their first use."""
    numbers: dict[int, int] = {}
    steps: list[PlannedLaunch | Node] = []
    for step in built.steps:
        if isinstance(step, PlannedLaunch):
            number = numbers.setdefault(step.kernel, len(numbers))
            steps.append(replace(step, kernel=number))
        else:
            steps.append(step)
    kernels = tuple(built.kernels[number] for number in numbers)
    return replace(built, kernels=kernels, steps=tuple(steps))
