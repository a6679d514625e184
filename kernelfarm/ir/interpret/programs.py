"""The meaning of a program: runs its plan step by step on flat NumPy buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.interpret.arrays import Array, numpy_dtype
from kernelfarm.ir.interpret.graphs import ExternSite, RunExtern
from kernelfarm.ir.interpret.kernels import run_kernel
from kernelfarm.ir.interpret.sizes import Value
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    DrawSeeds,
    ExternCall,
    Launch,
    Output,
    Plan,
    Program,
    TensorView,
    updated_inputs,
)
from kernelfarm.ir.triton.user_kernel import UserKernel

RunTemplate = Callable[[UserKernel, Sequence[Array], Sequence[int]], None]
"""Runs a kernel in Triton on flat buffers, some of which it writes; its last sizes are the grid."""

# The initial content of a buffer, so that kernels that read it give visibly wrong numbers.
_POISON_BYTE = 0xCB


def run_program(
    program: Program,
    inputs: Sequence[Value],
    run_extern: RunExtern | None = None,
    constants: Sequence[Array] = (),
    seeds: Sequence[int] = (),
    run_template: RunTemplate | None = None,
) -> list[Array | int | None]:
    """The outputs of a program; inputs that it updates are not changed.

    Shapes:
        inputs: arrays and integers by their position in the plan; arrays have the strides of the
            graph.
        constants: arrays by position among the graph's constants.
        seeds: one for each seed that the plan draws.

    Raises:
        IndexError: an index read from memory is outside its extent.
        VerificationError: a step contradicts its buffers, there is no `run_extern` for an extern
            step or no `run_template` for a kernel in Triton, or seeds are missing.
    """
    run = _Run(program.plan, inputs, constants)
    for step in program.plan.steps:
        if isinstance(step, Launch):
            if step.kernel >= len(program.kernels):
                _run_template(program, step, run, run_template)
                continue
            kernel = program.kernels[step.kernel]
            names = [param.name for param in kernel.params]
            buffers = dict(zip(names, (run.buffers[b] for b in step.buffers), strict=True))
            values = (size.evaluate(run.sizes) for size in step.sizes)
            sizes = dict(zip((size.name for size in kernel.sizes), values, strict=True))
            _check_lengths(kernel, buffers, sizes)
            run_kernel(kernel, buffers, sizes)
        elif isinstance(step, DrawSeeds):
            run.draw(step, seeds)
        else:
            run.call_extern(step, run_extern)
    return [run.output(output) for output in program.plan.outputs]


def _check_lengths(kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    """Checks that written buffers have the length that the kernel states: guards rely on it."""
    for param in kernel.params:
        expected = param.size_elems.evaluate(sizes)
        if param.access is not Access.READ and buffers[param.name].size != expected:
            raise VerificationError(
                f"kernel {kernel.name}: {param.name} of {buffers[param.name].size} elements;"
                f" expected {expected}"
            )


def _run_template(
    program: Program, step: Launch, run: _Run, run_template: RunTemplate | None
) -> None:
    template = program.all_kernels[step.kernel]
    assert isinstance(template, UserKernel)  # the kernels of loops come first
    if run_template is None:
        raise VerificationError(f"kernel {template.name} is in Triton and needs run_template")
    buffers = [run.buffers[name] for name in step.buffers]
    run_template(template, buffers, [size.evaluate(run.sizes) for size in step.sizes])


class _Run:
    """One call: the values of symbols, the arena, and the buffers as flat arrays."""

    def __init__(self, plan: Plan, inputs: Sequence[Value], constants: Sequence[Array]) -> None:
        self.inputs = inputs
        self.updated = updated_inputs(plan)
        self.constants = constants
        self.sizes = {s.symbol: _symbol_value(inputs[s.input], s.axis) for s in plan.symbols}
        self.arena = np.full(plan.arena_bytes.evaluate(self.sizes), _POISON_BYTE, np.uint8)
        self.buffers = {buffer.name: self._allocated(buffer) for buffer in plan.buffers}

    def _allocated(self, buffer: Buffer) -> Array:
        size = buffer.size_elems.evaluate(self.sizes)
        dtype = numpy_dtype(buffer.dtype)
        if buffer.kind is BufferKind.INPUT:
            array = _flat(np.asarray(self.inputs[buffer.position]), size)
            return array.copy() if buffer.name in self.updated else array
        if buffer.kind is BufferKind.CONSTANT:
            return self.constants[buffer.position].reshape(-1)
        if buffer.kind is BufferKind.TEMPORARY and buffer.offset_bytes is not None:
            start = buffer.offset_bytes.evaluate(self.sizes)
            return self.arena[start : start + size * dtype.itemsize].view(dtype)
        return np.full(size * dtype.itemsize, _POISON_BYTE, np.uint8).view(dtype)

    def view(self, view: TensorView) -> Array:
        """A strided view of a buffer, which shares its memory."""
        flat = self.buffers[view.buffer].view(numpy_dtype(view.dtype))
        sizes = [size.evaluate(self.sizes) for size in view.sizes]
        strides = [stride.evaluate(self.sizes) for stride in view.strides]
        offset = view.offset_elems.evaluate(self.sizes)
        steps = zip(sizes, strides, strict=True)
        last = offset + sum((size - 1) * stride for size, stride in steps)
        if 0 not in sizes and (offset < 0 or last >= flat.size):
            raise VerificationError(
                f"view of {view.buffer} reaches element {last}; expected at most {flat.size - 1}"
            )
        return _strided(flat[offset:], sizes, [stride * flat.itemsize for stride in strides])

    def call_extern(self, step: ExternCall, run_extern: RunExtern | None) -> None:
        """Runs a captured node and copies its results into their buffers."""
        if run_extern is None:
            raise VerificationError(f"extern step {step.node} ({step.op}) needs run_extern")
        site = ExternSite(step.node, step.op)
        results = run_extern(site, [self.view(arg) for arg in step.args])
        for view, result in zip(step.results, results, strict=True):
            if view is not None and result is not None:
                self.view(view)[...] = result

    def draw(self, step: DrawSeeds, seeds: Sequence[int]) -> None:
        """Writes the seeds into their buffers."""
        if len(step.buffers) > len(seeds):
            raise VerificationError(f"{len(seeds)} seeds; expected {len(step.buffers)}")
        for name, seed in zip(step.buffers, seeds, strict=False):
            self.buffers[name][...] = seed

    def output(self, output: Output) -> Array | int | None:
        """One output of the program."""
        if output is None:
            return None
        if isinstance(output, Expr):
            return output.evaluate(self.sizes)
        return self.view(output)


def _symbol_value(value: Value, axis: int) -> int:
    if axis < 0:
        return int(value)
    if isinstance(value, int):
        raise VerificationError(f"axis {axis} of the integer {value}; expected a tensor")
    return int(value.shape[axis])


def _flat(array: Array, size: int) -> Array:
    """The storage of an array from its first element on, with the plan's size."""
    spanned = 1 + sum(
        (extent - 1) * stride // array.itemsize
        for extent, stride in zip(array.shape, array.strides, strict=True)
    )
    if array.size and size > spanned:
        raise VerificationError(f"an input that spans {spanned} elements; expected {size}")
    flat = _strided(array, (size,), (array.itemsize,))
    flat.flags.writeable = False
    return flat


def _strided(array: Array, sizes: Sequence[int], byte_strides: Sequence[int]) -> Array:
    """The elements of an array at other strides; it shares the array's memory.

    NumPy's `as_strided` does not know all float types of one byte, so those become bytes for it.
    """
    plain = array.view(np.uint8) if array.itemsize == 1 else array
    return as_strided(plain, sizes, byte_strides).view(array.dtype)
