"""Which memory each step of a program reads and writes, and how long each memory is alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.ir.program_ir import BufferKind
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.extents import likely_elems, likely_sizes
from optimizer_svc.analysis.graph_facts import operands
from optimizer_svc.analysis.storages import span_elems
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.ir.built_steps import BuiltSteps, PlannedLaunch
from optimizer_svc.ir.group import Group
from optimizer_svc.ir.materialization import Materialization

MADE_KINDS = (BufferKind.TEMPORARY, BufferKind.EXTERN)
"""Memory that exists only while it is used."""


@dataclass(frozen=True, slots=True)
class StepUse:
    """The memories that a step reads and writes, each named by a value that it holds."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """The steps from the first to the last use of a memory; outputs are used behind the last."""

    first: int
    last: int


class Memories:
    """The memories of a program, named by values."""

    def __init__(self, chosen: Materialization) -> None:
        self._chosen = chosen
        self._likely = likely_sizes(chosen.facts.graph.symbols)
        self._bytes: dict[int, int] = {}
        self._inputs = {
            storage.position: value
            for value, storage in chosen.storages.items()
            if storage.kind is BufferKind.INPUT and value not in chosen.facts.producers
        }
        views = (view for view in chosen.output_views if isinstance(view, StridedView))
        self.returned = frozenset(self.of(view.source) for view in views)

    def of(self, value: int) -> int:
        """The memory of a value: a scatter has its base's, an update its input's."""
        storage = self._chosen.storages[value]
        is_input = storage.kind is BufferKind.INPUT
        return self._inputs[storage.position] if is_input else storage.value

    def kind(self, memory: int) -> BufferKind:
        """The kind of a memory."""
        return self._chosen.storages[memory].kind

    def likely_bytes(self, memory: int) -> int:
        """The bytes of a memory under assumed sizes."""
        found = self._bytes.get(memory)
        if found is None:
            storage = self._chosen.storages[memory]
            elems = likely_elems((span_elems(storage),), self._likely)
            found = self._bytes[memory] = elems * storage.dtype.itemsize_bytes
        return found

    def group_uses(
        self, steps: Sequence[Group | Node], stored: frozenset[int]
    ) -> tuple[StepUse, ...]:
        """What each step of a fusion uses."""
        return tuple(
            self._of_group(step, stored) if isinstance(step, Group) else self._of_extern(step)
            for step in steps
        )

    def built_uses(self, built: BuiltSteps) -> tuple[StepUse, ...]:
        """What each built step uses."""
        return tuple(
            self._of_launch(step, built.kernels[step.kernel])
            if isinstance(step, PlannedLaunch)
            else self._of_extern(step)
            for step in built.steps
        )

    def lives(self, uses: Sequence[StepUse]) -> dict[int, Life]:
        """The life of every memory that is used."""
        found: dict[int, Life] = {}
        for number, use in enumerate(uses):
            for memory in (*use.reads, *use.writes):
                first = found[memory].first if memory in found else number
                found[memory] = Life(first, number)
        for memory in self.returned & found.keys():
            found[memory] = Life(found[memory].first, len(uses))
        return found

    def _of_group(self, group: Group, stored: frozenset[int]) -> StepUse:
        spend(len(group.reads) + len(group.positions))
        reads = [self.of(value) for value, _ in group.reads if value not in group.positions]
        writes = [self.of(value) for value in group.positions if value in stored]
        return StepUse(_distinct(reads), _distinct(writes))

    def _of_launch(self, step: PlannedLaunch, kernel: Kernel) -> StepUse:
        used = [
            (self.of(value), param.access)
            for value, param in zip(step.values, kernel.params, strict=True)
        ]
        return StepUse(
            _distinct(memory for memory, access in used if access is not Access.WRITE),
            _distinct(memory for memory, access in used if access is not Access.READ),
        )

    def _of_extern(self, node: Node) -> StepUse:
        views = self._chosen.operand_views
        reads = [self.of(views[value].source) for value in operands(node)]
        used = (value for value in node.results if self.is_used_result(value))
        return StepUse(_distinct(reads), _distinct(map(self.of, used)))

    def is_used_result(self, value: int) -> bool:
        """True if a step or an output uses a result of an extern node."""
        return value in self.returned or bool(self._chosen.facts.consumers.get(value))


def live_bytes(lives: Mapping[int, Life], sizes: Mapping[int, int], steps: int) -> list[int]:
    """The bytes of the memories in `sizes` that are alive at each step, and behind the last."""
    changes = [0] * (steps + 2)
    for memory, size in sizes.items():
        changes[lives[memory].first] += size
        changes[lives[memory].last + 1] -= size
    found, live = [], 0
    for change in changes[: steps + 1]:
        live += change
        found.append(live)
    return found


def _distinct(memories: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(memories))
