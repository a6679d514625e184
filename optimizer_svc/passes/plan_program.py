"""Writes the plan: buffers, steps over them, the arena, and the outputs."""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.atoms import lone_symbol
from kernelfarm.ir.algebra.expr import ZERO, Expr, as_expr
from kernelfarm.ir.graph_ir import Constant, Graph, Node, TensorType, seed_index, seed_nodes
from kernelfarm.ir.plan_memory import buffer_uses
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    DrawSeeds,
    ExternCall,
    Launch,
    Output,
    Plan,
    Program,
    Step,
    SymbolSource,
    TensorView,
)
from kernelfarm.ir.work_budget import spend
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.apart import choose_apart
from optimizer_svc.analysis.arena import Lifetime, plan_arena
from optimizer_svc.analysis.extents import likely_sizes
from optimizer_svc.analysis.graph_facts import operands
from optimizer_svc.analysis.storages import span_elems
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.analysis.templates import is_template
from optimizer_svc.ir.built_steps import BuiltSteps, PlannedLaunch
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.memory_uses import Memories
from optimizer_svc.kernels.templates import TemplateStep, template_launches
from optimizer_svc.kernels.user_kernels import UserKernels

_BUFFERS_BY_POSITION = (BufferKind.INPUT, BufferKind.OUTPUT, BufferKind.CONSTANT)


def plan_program(chosen: Materialization, built: BuiltSteps, target: TargetFacts) -> Program:
    """The program of built steps.

    Raises:
        InvalidGraphError: no input gives a size symbol that is used.
    """
    users = UserKernels(len(built.kernels))
    writer = _PlanWriter(chosen, built, users, target)
    steps = tuple(step for made in built.steps for step in writer.steps(made))
    steps = (*writer.draws(), *steps)
    outputs = tuple(writer.output(output) for output in chosen.output_views)
    names = [kernel.name for kernel in built.kernels]
    plan = Plan(
        target=target.name,
        symbols=symbol_sources(chosen.facts.graph),
        buffers=writer.buffers(),
        arena_bytes=ZERO,
        kernel_names=(*names, *(kernel.name for kernel in users.kernels)),
        steps=steps,
        outputs=outputs,
    )
    apart = choose_apart(plan, likely_sizes(chosen.facts.graph.symbols))
    return Program(built.kernels, place_temporaries(plan, apart), users.kernels)


def place_temporaries(plan: Plan, apart: frozenset[str]) -> Plan:
    """The plan with offsets of its temporaries; those that are apart lie behind the others."""
    uses = buffer_uses(plan)
    lives: tuple[list[Lifetime], list[Lifetime]] = [], []
    for number, b in enumerate(plan.buffers):
        if b.kind is BufferKind.TEMPORARY:
            size_bytes = b.size_elems * b.dtype.itemsize_bytes
            lives[b.name in apart].append(Lifetime(number, size_bytes, *uses[b.name]))
    shared, behind = map(plan_arena, lives)
    offsets = shared.offsets | {
        number: shared.size_bytes + offset for number, offset in behind.offsets.items()
    }
    buffers = tuple(
        replace(b, offset_bytes=offsets.get(number), is_apart=b.name in apart)
        for number, b in enumerate(plan.buffers)
    )
    return replace(plan, buffers=buffers, arena_bytes=shared.size_bytes + behind.size_bytes)


def symbol_sources(graph: Graph) -> tuple[SymbolSource, ...]:
    """For every size symbol of the graph the input that gives its value.

    Raises:
        InvalidGraphError: no input is the symbol or has it as an extent.
    """
    found: dict[str, SymbolSource] = {}
    given = [source for source in graph.inputs if not isinstance(source.kind, Constant)]
    for position, source in enumerate(given):
        if isinstance(source.kind, str):
            found[source.kind] = SymbolSource(source.kind, position, -1)
    for position, source in enumerate(given):
        if not isinstance(source.kind, TensorType):
            continue
        for axis, extent in enumerate(source.kind.shape):
            name = lone_symbol(extent)
            if name is not None:
                found.setdefault(name, SymbolSource(name, position, axis))
    missing = [s.name for s in graph.symbols if s.name not in found]
    if missing:
        raise InvalidGraphError(
            f"size symbol {missing[0]} is no input and no extent of one; expected either"
        )
    return tuple(found[s.name] for s in graph.symbols)


class _PlanWriter:
    """Names buffers at their first use."""

    def __init__(
        self,
        chosen: Materialization,
        built: BuiltSteps,
        users: UserKernels,
        target: TargetFacts,
    ) -> None:
        self._chosen = chosen
        self._target = target
        self._users = users
        self._shared, self._blocks = built.shared, built.blocks
        self._buffers: dict[int, Buffer] = {}
        self._counts = {BufferKind.TEMPORARY: 0, BufferKind.EXTERN: 0}
        views = (*chosen.operand_views.values(), *chosen.output_views)
        self._memories = Memories(chosen)
        self._viewed = {view.source for view in views if isinstance(view, StridedView)}

    def steps(self, step: PlannedLaunch | Node) -> tuple[Step, ...]:
        """The steps of the plan for one that was built: several for some templates."""
        spend(24)
        if isinstance(step, PlannedLaunch):
            spend(len(step.values))
            names = tuple(map(self._used, step.values))
            return (Launch(step.kernel, names, step.sizes),)
        if is_template(step):
            return self._template(step)
        views = self._chosen.operand_views
        args = tuple(self._view(views[value]) for value in operands(step))
        call = ExternCall(
            node=_int(step, "node"),
            op=str(step.attr("op")),
            args=args,
            results=tuple(map(self._result, step.results)),
            is_contraction=step.attr("is_contraction") is True,
            choices=self._users.choices(step),
        )
        return (call,)

    def _template(self, step: Node) -> tuple[Launch, ...]:
        """The launches of a template's kernels on the memory of its operands and results."""
        views = [self._chosen.operand_views[value] for value in operands(step)]
        dtypes = [self._chosen.storages[view.source].dtype for view in views]
        found = TemplateStep(step, views, dtypes, self._chosen.facts.bounds)
        names = (*(self._used(view.source) for view in views), *map(self._used, step.results))
        return tuple(
            Launch(
                self._users.number(made.kernel),
                names if made.buffers is None else tuple(names[place] for place in made.buffers),
                made.sizes,
            )
            for made in template_launches(found, self._target)
        )

    def draws(self) -> tuple[DrawSeeds, ...]:
        """The first step, which draws the seeds that are used; none if no seed is."""
        drawn = sorted(seed_nodes(self._chosen.facts.graph), key=seed_index)
        used = [self._buffers[n.results[0]] for n in drawn if n.results[0] in self._buffers]
        return (DrawSeeds(tuple(buffer.name for buffer in used)),) if used else ()

    def output(self, output: StridedView | Expr | None) -> Output:
        """One output of the plan."""
        return self._view(output) if isinstance(output, StridedView) else output

    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers in order of first use."""
        return tuple(self._buffers.values())

    def _result(self, value: int) -> TensorView | None:
        if value not in self._viewed and not self._chosen.facts.consumers.get(value):
            return None
        return self._view(self._chosen.storages[value].whole())

    def _view(self, view: StridedView) -> TensorView:
        return TensorView(
            buffer=self._used(view.source),
            dtype=self._chosen.storages[view.source].dtype,
            sizes=view.shape,
            strides=view.strides,
            offset_elems=view.offset,
        )

    def _used(self, value: int) -> str:
        """The name of a value's buffer."""
        value = self._memory_of(value)
        if value not in self._buffers:
            self._buffers[value] = self._new_buffer(value)
        return self._buffers[value].name

    def _memory_of(self, value: int) -> int:
        """The value that names the memory; a block has a number of its own."""
        if value in self._blocks:
            return value
        memory = self._memories.of(value)
        return self._shared.get(memory, memory)

    def _new_buffer(self, value: int) -> Buffer:
        memory, elems = self._blocks.get(value, (value, 0))
        storage = self._chosen.storages[memory]
        kind = storage.kind
        position = storage.position
        if kind not in _BUFFERS_BY_POSITION:
            position = self._counts[kind]
            self._counts[kind] += 1
        return Buffer(
            name=f"{kind.value}{position}",
            kind=kind,
            dtype=storage.dtype,
            size_elems=as_expr(elems) if elems else span_elems(storage),
            position=position if kind in _BUFFERS_BY_POSITION else 0,
        )


def _int(node: Node, name: str) -> int:
    value = node.attr(name)
    if not isinstance(value, int):
        raise InvalidGraphError(f"extern node: {name}={value!r}; expected an integer")
    return value
