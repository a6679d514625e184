"""Text of execution plans, for readers; it is not parsed."""

from __future__ import annotations

from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    DrawSeeds,
    ExternCall,
    Launch,
    Output,
    Plan,
    Step,
    SymbolSource,
    TensorView,
)

_KINDS = {
    BufferKind.INPUT: "input",
    BufferKind.OUTPUT: "output",
    BufferKind.TEMPORARY: "temporary",
    BufferKind.EXTERN: "extern result",
    BufferKind.CONSTANT: "constant",
}


def print_plan(plan: Plan) -> str:
    """The plan as text: sizes, buffers, kernels, steps in order, outputs."""
    lines = [f"plan for {plan.target}"]
    lines.extend(_symbol(source) for source in plan.symbols)
    lines.append(f"arena of {plan.arena_bytes} bytes")
    lines.extend(_buffer(buffer) for buffer in plan.buffers)
    for index, name in enumerate(plan.kernel_names):
        key = f" key {plan.kernel_keys[index].hex()}" if plan.kernel_keys else ""
        lines.append(f"kernel {name}{key}")
    for index, step in enumerate(plan.steps):
        lines.append(f"  {index}: {_step(step, plan.kernel_names)}")
    lines.append(f"return {', '.join(map(_output, plan.outputs))}".rstrip())
    return "\n".join(lines) + "\n"


def _symbol(source: SymbolSource) -> str:
    if source.axis < 0:
        return f"size {source.symbol} = input {source.input}"
    return f"size {source.symbol} = extent of axis {source.axis} of input {source.input}"


def _buffer(buffer: Buffer) -> str:
    text = f"buffer {buffer.name}: {buffer.dtype.value}[{buffer.size_elems}], {_KINDS[buffer.kind]}"
    if buffer.kind is BufferKind.TEMPORARY:
        apart = ", apart" if buffer.is_apart else ""
        return f"{text} at byte {buffer.offset_bytes}{apart}"
    return text if buffer.kind is BufferKind.EXTERN else f"{text} {buffer.position}"


def _step(step: Step, names: tuple[str, ...]) -> str:
    if isinstance(step, Launch):
        sizes = f"; {', '.join(map(str, step.sizes))}" if step.sizes else ""
        return f"launch {names[step.kernel]}({', '.join(step.buffers)}{sizes})"
    if isinstance(step, DrawSeeds):
        return f"draw seeds {', '.join(step.buffers)}"
    return _extern(step, names)


def _extern(call: ExternCall, names: tuple[str, ...]) -> str:
    results = ", ".join("unused" if view is None else _view(view) for view in call.results)
    args = ", ".join(map(_view, call.args))
    kind = ", a contraction" if call.is_contraction else ""
    chosen = ", ".join(names[choice.kernel] for choice in call.choices)
    kernel = f", kernel {chosen}" if len(call.choices) == 1 else f", one of the kernels {chosen}"
    kernel = kernel if call.choices else ""
    return f"{results} = extern {call.op}({args}) of captured node {call.node}{kind}{kernel}"


def _view(view: TensorView) -> str:
    sizes = ", ".join(map(str, view.sizes))
    strides = ", ".join(map(str, view.strides))
    start = "" if view.offset_elems == 0 else f" from {view.offset_elems}"
    return f"{view.buffer}: {view.dtype.value}[{sizes}]@[{strides}]{start}"


def _output(output: Output) -> str:
    if output is None:
        return "none"
    return f"{{{output}}}" if isinstance(output, Expr) else _view(output)
