"""Writes the report: what was fused, what was not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.plan_memory import plan_memory
from kernelfarm.ir.program_ir import DrawSeeds, ExternCall, Launch, Plan, Program
from kernelfarm.ir.triton.user_kernel import FixedParam, UserKernel
from kernelfarm.targets import TargetFacts
from kernelfarm.traffic import LIKELY_SIZE, BlockForm, choose_block
from optimizer_svc.analysis.templates import launches_of
from optimizer_svc.ir.built_steps import BuiltSteps
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.fused import Fusion
from optimizer_svc.ir.group import Group
from optimizer_svc.ir.layouts import Layouts
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.products import Products
from optimizer_svc.ir.splits import Splits


def report_fusion(  # noqa: PLR0913, PLR0917  # what all passes found
    attention: ContractionChoice,
    attention_gradients: ContractionChoice,
    convolutions: ContractionChoice,
    winograd: ContractionChoice,
    batched_products: ContractionChoice,
    products: Products,
    splits: Splits,
    chosen: Materialization,
    layouts: Layouts,
    depthwise: ContractionChoice,
    fusion: Fusion,
    built: BuiltSteps,
    program: Program,
    target: TargetFacts,
) -> str:
    """The report, one fact a line: counts, kernels, steps with their nodes, refusals."""
    graph = chosen.facts.graph
    return "\n".join(
        (
            *_counts(fusion, program),
            *_launches(program),
            *(_traffic(kernel, target) for kernel in program.kernels),
            *attention.notes,
            *attention_gradients.notes,
            *convolutions.notes,
            *winograd.notes,
            *batched_products.notes,
            *products.notes,
            *splits.notes,
            *layouts.notes,
            *depthwise.notes,
            *chosen.notes,
            *fusion.notes,
            *built.notes,
            *_hints(fusion, built, program),
            *_steps(graph, fusion, built, program),
            *_refusals(fusion, built, program),
        )
    )


def _counts(fusion: Fusion, program: Program) -> Iterator[str]:
    steps = program.plan.steps
    launched = [step.kernel for step in steps if isinstance(step, Launch)]
    yield f"loop nests: {fusion.nests}"
    yield f"launches: {len(launched)} of {len(set(launched))} distinct kernels"
    apart = sum(buffer.is_apart for buffer in program.plan.buffers)
    yield f"arena: {program.plan.arena_bytes} bytes" + (f", {apart} apart" if apart else "")
    yield _memory(program.plan)
    calls = [step for step in steps if isinstance(step, ExternCall)]
    externs = Counter(step.op for step in calls if not step.choices)
    for op, count in sorted(externs.items()):
        yield f"extern {op}: {count}"


def _memory(plan: Plan) -> str:
    """The bytes that a call allocates at most, and the least that this order of steps allows."""
    found = plan_memory(plan, {source.symbol: LIKELY_SIZE for source in plan.symbols})
    sizes = f"; varying sizes are taken as {LIKELY_SIZE}" if plan.symbols else ""
    apart = f", temporaries apart {found.apart_bytes}" if found.apart_bytes else ""
    return (
        f"memory: peak {found.peak_bytes} bytes (arena {found.arena_bytes}, extern results"
        f" {found.extern_bytes}, outputs {found.output_bytes}{apart}), lower bound"
        f" {found.least_bytes}"
        f" (arena {found.least_arena_bytes}){sizes}"
    )


def _launches(program: Program) -> Iterator[str]:
    counts = Counter(step.kernel for step in program.plan.steps if isinstance(step, Launch))
    for number, kernel in enumerate(program.kernels):
        yield f"kernel {kernel.name}: {counts[number]} launches, {len(kernel.body)} statements"
    externs = (step for step in program.plan.steps if isinstance(step, ExternCall))
    users = Counter(choice.kernel for step in externs for choice in step.choices)
    for number, user in enumerate(program.user_kernels, len(program.kernels)):
        lines = len(user.source.splitlines())
        kind = "template kernel" if counts[number] else "user kernel"
        yield (
            f"{kind} {user.name}: {users[number] + counts[number]} launches, {lines} lines of"
            f" Triton{_configuration(user)}"
        )


def _configuration(kernel: UserKernel) -> str:
    fixed = ((p.name, p.value) for p in kernel.params if isinstance(p, FixedParam))
    shown = [f"{name}={value}" for name, value in (*fixed, *kernel.options)]
    return f"; {', '.join(shown)}" if shown else ""


def _traffic(kernel: Kernel, target: TargetFacts) -> str:
    """The form of a kernel's blocks and its price in bytes, as `kernelfarm.traffic` counts them."""
    choice = choose_block(kernel, target.memory)
    form = {
        BlockForm.FLAT: "flat blocks",
        BlockForm.TILE: f"tiles of {choice.side} by {choice.side} points",
        BlockForm.ROWS: "rows",
        BlockForm.COLUMNS: "columns",
    }[choice.form]
    sizes = f"; varying sizes are taken as {LIKELY_SIZE}" if kernel.sizes else ""
    moved = choice.moved
    return (
        f"kernel {kernel.name}: {form} that cost as much as {moved.cost_bytes} bytes from memory,"
        f" at least {moved.least_bytes}{sizes}"
    )


def _hints(fusion: Fusion, built: BuiltSteps, program: Program) -> Iterator[str]:
    """The hints that kernels have; notes name those that are ignored."""
    numbers = _numbers(fusion, built, program)
    for position, hint in built.used_hints:
        step = program.plan.steps[numbers[position]]
        assert isinstance(step, Launch)  # as apply-hints found it
        yield f"{hint}: kernel {program.plan.kernel_names[step.kernel]} has it"


def _steps(graph: Graph, fusion: Fusion, built: BuiltSteps, program: Program) -> Iterator[str]:
    """Each step of the plan; of launches in blocks, those of the first block."""
    for step in program.plan.steps[: _drawn(program)]:
        if isinstance(step, DrawSeeds):
            yield f"seeds: {len(step.buffers)}, drawn by the framework's generator"
    sources = _sources(fusion, built)
    shown: set[int] = set()
    scheduled = (at for at in sources for _ in range(launches_of(fusion.steps[at])))
    first = _drawn(program)
    planned = zip(scheduled, program.plan.steps[first:], strict=True)
    for number, (at, step) in enumerate(planned, first):
        made_of = fusion.steps[at]
        if at in shown and launches_of(made_of) == 1:
            continue
        shown.add(at)
        if isinstance(step, ExternCall):
            yield f"step {number}: {_extern(program, step)}"
        elif isinstance(made_of, Group) and isinstance(step, Launch):
            origins = (origin for member in made_of.members for origin in member.nest.origins)
            # A `full` may be shared by many operators, and would name them all.
            nodes = sorted({node for op, node in origins if op != "full"})
            texts = ", ".join(_captured(graph, node) for node in nodes)
            yield f"step {number}: kernel {program.plan.kernel_names[step.kernel]}: {texts}"
        elif isinstance(made_of, Node) and isinstance(step, Launch):
            texts = ", ".join(_captured(graph, node) for node in made_of.origins)
            yield f"step {number}: kernel {program.plan.kernel_names[step.kernel]}: {texts}"


def _extern(program: Program, step: ExternCall) -> str:
    if not step.choices:
        return f"extern {step.op} (node {step.node})"
    names = [program.plan.kernel_names[choice.kernel] for choice in step.choices]
    kernels = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    return f"user kernel {kernels} (node {step.node}); kernels before and after it are not fused"


def _drawn(program: Program) -> int:
    """The number of steps of the plan that draw seeds, before the scheduled ones."""
    return sum(isinstance(step, DrawSeeds) for step in program.plan.steps)


def _sources(fusion: Fusion, built: BuiltSteps) -> Sequence[int]:
    """The position in the fusion of each step."""
    return built.sources or range(len(fusion.steps))


def _numbers(fusion: Fusion, built: BuiltSteps, program: Program) -> dict[int, int]:
    """The number of the plan's step, the first of several, for each step of a fusion."""
    sources = _sources(fusion, built)
    counts = (launches_of(fusion.steps[at]) for at in sources)
    found: dict[int, int] = {}
    for at, number in zip(sources, accumulate(counts, initial=_drawn(program)), strict=False):
        found.setdefault(at, number)
    return found


def _captured(graph: Graph, node: int) -> str:
    known = node < len(graph.origin_ops)
    return f"{graph.origin_ops[node].removesuffix('.default')} ({node})" if known else f"({node})"


def _refusals(fusion: Fusion, built: BuiltSteps, program: Program) -> Iterator[str]:
    """Why kernels were not fused: for pairs that were tried, and for all adjacent pairs."""
    numbers = {
        min(step.positions): number
        for at, number in _numbers(fusion, built, program).items()
        if isinstance(step := fusion.steps[at], Group)
    }
    reasons: dict[tuple[int, int], str] = {}
    for refusal in fusion.refusals:
        first, second = sorted((numbers[refusal.first], numbers[refusal.second]))
        reasons[first, second] = refusal.reason
    for pair in pairwise(sorted(numbers.values())):
        if pair not in reasons:
            reasons[pair] = _apart(program, *pair)
    for (first, second), reason in sorted(reasons.items()):
        yield f"not fused: steps {first} and {second}: {reason}"


def _apart(program: Program, first: int, second: int) -> str:
    a, b = program.plan.steps[first], program.plan.steps[second]
    between = program.plan.steps[first + 1 : second]
    kernels = range(len(program.kernels))
    if any(not isinstance(step, Launch) or step.kernel not in kernels for step in between):
        return "extern steps lie between them"
    if isinstance(a, Launch) and isinstance(b, Launch) and set(a.buffers) & set(b.buffers):
        return "others that save more traffic came first"
    return "they share no buffer, so that fusing saves no traffic"
