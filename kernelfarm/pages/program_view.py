"""Everything that the page of one program shows, ready for its template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kernelfarm.errors import CallerError, MalformedMessageError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.artifact import LaunchFacts, guard_text
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.pages.drawing import Drawing, draw_steps
from kernelfarm.pages.graph_lines import GraphLines, captured_lines, prims_lines
from kernelfarm.pages.line_marks import KernelOrigin, origins_of
from kernelfarm.pages.program_facts import ProgramFacts, VariantFacts, named_digests
from kernelfarm.pages.report_lines import ReportFacts, read_report
from kernelfarm.pages.stage_panes import kernel_panes, packed, variant_name
from kernelfarm.pages.step_graph import StepGraph, bytes_text, step_graph

MAX_TEXT_BYTES = 256 * 1024 * 1024
"""Text of all stages of a page; a program of 300 kernels for a GPU has 30 MiB."""

ReadBlobs = Callable[[Sequence[bytes]], Mapping[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and a value of a list of facts."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class VariantView:
    """One variant of a kernel: its guard as a sentence, and the facts of its toolchain."""

    name: str
    guard: str
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelView:
    """One kernel; `blocks` says how it is divided, `panes` are its stages, compressed."""

    number: int
    name: str
    key: str
    origins: tuple[KernelOrigin, ...]
    steps: tuple[int, ...]
    cost_ms: float
    binary_size: str
    statements: int
    blocks: str
    variants: tuple[VariantView, ...]
    panes: str


@dataclass(frozen=True, slots=True)
class ProgramView:
    """The page of one program."""

    target: str
    key: str
    facts: tuple[Fact, ...]
    tags: tuple[str, ...]
    guard: str
    graph: StepGraph
    drawing: Drawing
    report: ReportFacts
    locations: Mapping[int, str]
    kernels: tuple[KernelView, ...]
    texts: str


def program_view(facts: ProgramFacts, read_blobs: ReadBlobs) -> ProgramView:
    """The view of a program, whose stages `read_blobs` reads by SHA-256.

    Raises:
        CallerError: its stages have more text than a page may have.
        MalformedMessageError: a stage is missing, or is not what its name says.
    """
    _check_size(facts)
    blobs = read_blobs(named_digests(facts))
    texts = {s.name: blobs[s.sha256].decode("utf-8", "replace") for s in facts.stages if s.is_text}
    missing = {"aten", "prims", "report"} - texts.keys()
    if missing:
        raise MalformedMessageError(
            f"program {facts.key.hex()[:16]} has no stage {', '.join(sorted(missing))}"
        )
    kernels = [_kernel(variants, blobs) for variants in facts.kernels]
    graph, report = step_graph(facts.plan, kernels), read_report(texts["report"])
    captured, prims = captured_lines(texts["aten"]), prims_lines(texts["prims"])
    return ProgramView(
        target=facts.target,
        key=facts.key.hex(),
        facts=tuple(_program_facts(facts)),
        tags=facts.manifest.tags,
        guard=" and ".join(map(str, facts.manifest.guard)) or "always",
        graph=graph,
        drawing=draw_steps(graph, report),
        report=report,
        locations=captured.locations,
        kernels=tuple(_kernel_views(facts, kernels, graph, report, (captured, prims), blobs)),
        texts=packed(texts),
    )


def _check_size(facts: ProgramFacts) -> None:
    stages = [s for variants in facts.kernels for v in variants for s in v.stages]
    total = sum(s.size_bytes for s in [*facts.stages, *stages] if s.is_text)
    if total > MAX_TEXT_BYTES:
        raise CallerError(
            f"the stages of program {facts.key.hex()[:16]} have {bytes_text(total)} of text; a page"
            f" holds at most {bytes_text(MAX_TEXT_BYTES)}: print single kernels with --kernel"
        )


def _kernel(variants: Sequence[VariantFacts], blobs: Mapping[bytes, bytes]) -> Kernel:
    stages = {stage.name: stage for stage in variants[-1].stages}
    if "user_kernel" in stages:  # no loop nest; its panes are its stages
        return Kernel(variants[-1].launch.symbol, (), (), (), (), ())
    stage = stages.get("kernel")
    if stage is None:
        raise MalformedMessageError(f"kernel {variants[-1].key.hex()[:16]} has no stage `kernel`")
    return parse_kernel(blobs[stage.sha256].decode("utf-8", "replace"))


def _kernel_views(
    facts: ProgramFacts,
    kernels: Sequence[Kernel],
    graph: StepGraph,
    report: ReportFacts,
    lines: tuple[GraphLines, GraphLines],
    blobs: Mapping[bytes, bytes],
) -> Iterable[KernelView]:
    steps: dict[int, list[int]] = {}
    for step in graph.steps:
        steps.setdefault(step.kernel, []).append(step.number)
    for number, (kernel, variants) in enumerate(zip(kernels, facts.kernels, strict=True)):
        yield KernelView(
            number=number,
            name=facts.plan.kernel_names[number],
            key=variants[-1].key.hex(),
            origins=origins_of(kernel),
            steps=tuple(steps.get(number, ())),
            cost_ms=sum(variant.cost_ms for variant in variants),
            binary_size=bytes_text(_binary_bytes(variants)),
            statements=len(kernel.body),
            blocks=report.blocks.get(facts.plan.kernel_names[number], ""),
            variants=tuple(_variant(n, variants) for n in range(len(variants))),
            panes=packed(kernel_panes(kernel, variants, *lines, blobs)),
        )


def _binary_bytes(variants: Sequence[VariantFacts]) -> int:
    return sum(s.size_bytes for v in variants for s in v.stages if s.name == v.binary)


def _variant(number: int, variants: Sequence[VariantFacts]) -> VariantView:
    variant = variants[number]
    facts = [
        Fact("toolchain", variant.toolchain),
        Fact("compile time", f"{variant.cost_ms:,.0f} ms"),
        Fact("confined by", variant.sandbox or "not reported"),
        *_launch_facts(variant.launch),
    ]
    if variant.stub_reason:
        facts.append(Fact("placeholder", variant.stub_reason))
    return VariantView(
        variant_name(number, len(variants)), guard_text(variant.guard), tuple(facts), variant.notes
    )


def _launch_facts(launch: LaunchFacts) -> Iterable[Fact]:
    if launch.grid:
        yield Fact("grid", ", ".join(map(str, launch.grid)))
    numbers = (
        ("warps", launch.num_warps),
        ("shared memory, bytes", launch.shared_bytes),
        ("registers", launch.registers),
        ("spills", launch.spills),
        ("block, outer elements", launch.xblock_elems),
        ("block, reduction elements", launch.rblock_elems),
        ("local buffer, bytes", launch.local_bytes),
    )
    yield from (Fact(name, str(value)) for name, value in numbers if value)
    if launch.programmatic_launch:
        yield Fact("programmatic launch", "yes: its blocks may start before the kernel ahead ends")
    yield from (Fact(name, text) for name, text in launch.extras)


def _program_facts(facts: ProgramFacts) -> Iterable[Fact]:
    manifest, plan = facts.manifest, facts.plan
    kinds = Counter(type(step).__name__ for step in plan.steps)
    yield Fact("target", facts.target)
    yield Fact("program key", facts.key.hex())
    yield Fact("found", facts.found)
    yield Fact("namespace", manifest.namespace)
    yield Fact("compile time", f"{manifest.cost_ms:,.0f} ms")
    yield Fact("kernels", f"{len(plan.kernel_names)}, launched {kinds['Launch']} times")
    yield Fact("steps of the framework", str(kinds["ExternCall"]))
    yield Fact("arena", _arena_text(plan.arena_bytes))
    ends = datetime.fromtimestamp(manifest.not_after_s, UTC)
    yield Fact("valid until", f"{ends:%Y-%m-%d %H:%M:%S} UTC")
    yield Fact("epoch", f"{manifest.epoch} of incarnation {manifest.incarnation}")
    yield Fact("signed by", manifest.key_id or "nobody: this farm signs nothing")
    yield Fact("signature", facts.checked)


def _arena_text(arena_bytes: Expr) -> str:
    return bytes_text(arena_bytes.as_int()) if arena_bytes.is_constant else f"{arena_bytes} B"
