"""Checks a plan against the captured graph before it runs, because the farm may be wrong."""

from __future__ import annotations

from collections.abc import Mapping

from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError, InvalidGraphError
from kernelfarm.ir.graph_ir import Constant, Graph, Ref, TensorType
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    DrawSeeds,
    ExternCall,
    Launch,
    Plan,
    TensorView,
)


def check_plan(program: BoundProgram) -> None:
    """Checks that every reference in the plan exists and fits the captured graph.

    Raises:
        InvalidGraphError: a buffer, input, output, kernel or symbol does not exist or fit.
    """
    plan = program.plan
    if len(program.kernels) != len(plan.kernel_names):
        raise _wrong(f"{len(plan.kernel_names)} kernels, but {len(program.kernels)} are loaded")
    _check_outputs(program)
    for buffer in plan.buffers:
        _check_buffer(program, buffer)
    _check_steps(plan)
    _check_seeds(plan)
    _check_symbols(program)


def check_sizes(program: BoundProgram, sizes: Mapping[str, int]) -> None:
    """Checks that the sizes of a call are in the ranges for which the graph was captured.

    Raises:
        CallerError: a size is outside its range.
    """
    for symbol in program.captured.graph.symbols:
        value = sizes[symbol.name]
        if value < symbol.lower or (symbol.upper is not None and value > symbol.upper):
            upper = "any size" if symbol.upper is None else symbol.upper
            raise CallerError(
                f"size {symbol.name} is {value}; compiled for {symbol.lower} to {upper}"
            )


def _check_outputs(program: BoundProgram) -> None:
    graph = program.captured.graph
    if len(program.plan.outputs) != len(graph.outputs):
        seen, expected = len(program.plan.outputs), len(graph.outputs)
        raise _wrong(f"{seen} outputs; the captured graph has {expected}")
    buffers = {buffer.name: buffer for buffer in program.plan.buffers}
    allowed = {(u.output, u.input) for u in graph.updates} | _passed_through(graph)
    for number, output in enumerate(program.plan.outputs):
        if not isinstance(output, TensorView):
            continue
        buffer = buffers.get(output.buffer)
        if buffer is None:
            raise _wrong(f"an output in buffer {output.buffer}, which does not exist")
        if buffer.kind is BufferKind.INPUT and (number, buffer.position) not in allowed:
            raise _wrong(f"output {number} in input {buffer.position}, which it does not update")


def _passed_through(graph: Graph) -> set[tuple[int, int]]:
    """The outputs that are inputs, as positions: a forward graph saves them for its backward."""
    positions = {source.value: position for position, source in enumerate(graph.inputs)}
    return {
        (number, positions[output.value])
        for number, output in enumerate(graph.outputs)
        if isinstance(output, Ref) and output.value in positions
    }


def _check_buffer(program: BoundProgram, buffer: Buffer) -> None:
    graph = program.captured.graph
    constants = sum(isinstance(source.kind, Constant) for source in graph.inputs)
    limits = {
        BufferKind.INPUT: len(graph.inputs),
        BufferKind.OUTPUT: len(graph.outputs),
        BufferKind.CONSTANT: constants,
    }
    limit = limits.get(buffer.kind)
    if limit is not None and not 0 <= buffer.position < limit:
        raise _wrong(f"buffer {buffer.name} at position {buffer.position} of {limit}")
    if buffer.kind is BufferKind.INPUT:
        kind = graph.inputs[buffer.position].kind
        held = kind.type if isinstance(kind, Constant) else kind
        if not isinstance(held, TensorType) or held.dtype is not buffer.dtype:
            raise _wrong(f"buffer {buffer.name} of {buffer.dtype!r}; the input is {held!r}")


def _check_steps(plan: Plan) -> None:
    names = {buffer.name for buffer in plan.buffers}
    for step in plan.steps:
        if isinstance(step, DrawSeeds):
            used = set(step.buffers)
        elif isinstance(step, Launch):
            used = set(step.buffers)
            if not 0 <= step.kernel < len(plan.kernel_names):
                raise _wrong(f"a launch of kernel {step.kernel} of {len(plan.kernel_names)}")
        else:
            used = _buffers_of(step)
            for choice in step.choices:
                if not 0 <= choice.kernel < len(plan.kernel_names):
                    raise _wrong(f"a choice of kernel {choice.kernel} of {len(plan.kernel_names)}")
        if used - names:
            raise _wrong(f"a step uses buffers {sorted(used - names)}, which do not exist")


def _check_seeds(plan: Plan) -> None:
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    for step in plan.steps:
        for name in step.buffers if isinstance(step, DrawSeeds) else ():
            buffer = buffers[name]
            is_seed = buffer.kind is BufferKind.EXTERN and buffer.dtype is DType.I64
            if not is_seed or buffer.size_elems != 1:
                raise _wrong(f"a seed in buffer {name} of {buffer.dtype!r}[{buffer.size_elems}]")


def _buffers_of(step: ExternCall) -> set[str]:
    return {view.buffer for view in (*step.args, *step.results) if view is not None}


def _check_symbols(program: BoundProgram) -> None:
    inputs = len(program.captured.graph.inputs)
    for source in program.plan.symbols:
        if not 0 <= source.input < inputs:
            raise _wrong(f"symbol {source.symbol} from input {source.input} of {inputs}")
        kind = program.captured.graph.inputs[source.input].kind
        rank = kind.rank if isinstance(kind, TensorType) else 0
        if not (source.axis == -1 and isinstance(kind, str)) and not 0 <= source.axis < rank:
            raise _wrong(f"symbol {source.symbol} from axis {source.axis} of rank {rank}")


def _wrong(what: str) -> InvalidGraphError:
    return InvalidGraphError(f"plan: {what}")
