"""The steps of a plan as a graph: which step reads a buffer that which other step wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    DrawSeeds,
    ExternCall,
    Launch,
    Plan,
    Step,
    TensorView,
)

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class StepNode:
    """One step: what it reads and writes, by buffer name, and its kernel's number (-1: none)."""

    number: int
    title: str
    kind: str
    kernel: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BufferEdge:
    """A buffer that one step writes and a later one reads."""

    writer: int
    reader: int
    buffer: str


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Steps in their order, edges, and the size of each buffer as text.

    `inputs` are the buffers that the caller gives, `outputs` maps buffers to the outputs in them.
    """

    steps: tuple[StepNode, ...]
    edges: tuple[BufferEdge, ...]
    sizes: Mapping[str, str]
    inputs: frozenset[str]
    outputs: Mapping[str, tuple[int, ...]]


def step_graph(plan: Plan, kernels: Sequence[Kernel]) -> StepGraph:
    """The graph of a plan; `kernels` are its kernels, in the plan's order."""
    given = (BufferKind.INPUT, BufferKind.CONSTANT)
    inputs = frozenset(buffer.name for buffer in plan.buffers if buffer.kind in given)
    known = set(inputs)
    found = []
    for number, planned in enumerate(plan.steps):
        found.append(_node(number, planned, plan, kernels, known))
        known.update(found[-1].writes)
    steps = tuple(found)
    last_writer: dict[str, int] = {}
    edges: list[BufferEdge] = []
    for step in steps:
        for name in step.reads:
            writer = last_writer.get(name)
            if writer is not None:
                edges.append(BufferEdge(writer, step.number, name))
        last_writer.update(dict.fromkeys(step.writes, step.number))
    outputs: dict[str, tuple[int, ...]] = {}
    for number, output in enumerate(plan.outputs):
        if isinstance(output, TensorView):
            outputs[output.buffer] = (*outputs.get(output.buffer, ()), number)
    sizes = {buffer.name: size_text(buffer) for buffer in plan.buffers}
    return StepGraph(steps, tuple(edges), sizes, inputs, outputs)


def size_text(buffer: Buffer) -> str:
    """The size of a buffer: `8 KiB`, or the expression in bytes if it varies."""
    size_bytes = buffer.size_elems * buffer.dtype.itemsize_bytes
    return bytes_text(size_bytes.as_int()) if size_bytes.is_constant else f"{size_bytes} B"


def bytes_text(size_bytes: int) -> str:
    """A number of bytes for people: `8 KiB`, `1.5 MiB`."""
    amount, unit = float(size_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    text = f"{amount:.1f}".removesuffix(".0") if unit else str(size_bytes)
    return f"{text} {_UNITS[unit]}"


def _node(
    number: int, step: Step, plan: Plan, kernels: Sequence[Kernel], known: Collection[str]
) -> StepNode:
    """One step; `known` are the buffers with content before it."""
    match step:
        case Launch(kernel, buffers) if not kernels[kernel].params:
            # A template in Triton does not say what it writes: buffers without content.
            reads = (name for name in buffers if name in known)
            writes = (name for name in buffers if name not in known)
            title = plan.kernel_names[kernel]
            return StepNode(number, title, "kernel", kernel, _unique(reads), _unique(writes))
        case Launch(kernel, buffers):
            pairs = list(zip(kernels[kernel].params, buffers, strict=True))
            reads = (name for param, name in pairs if param.access is not Access.WRITE)
            writes = (name for param, name in pairs if param.access is not Access.READ)
            title = plan.kernel_names[kernel]
            return StepNode(number, title, "kernel", kernel, _unique(reads), _unique(writes))
        case ExternCall():
            reads = (view.buffer for view in step.args)
            writes = (view.buffer for view in step.results if view is not None)
            return StepNode(number, step.op, "extern", -1, _unique(reads), _unique(writes))
        case DrawSeeds(buffers):
            return StepNode(number, "draw seeds", "seeds", -1, (), tuple(buffers))


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
