"""Runs template kernels of programs by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, fx

from codegen_svc.emitters.triton.user_module import emit_user_module
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.interpret.programs import run_program
from kernelfarm.ir.program_ir import Launch, Program
from kernelfarm.ir.triton.user_kernel import GRID_SIZES, FixedParam, UserKernel
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import TargetFacts
from optimizer_svc.pipeline import optimize
from tests.support.traced_graphs import capturing
from tests.support.triton_interpreter import Case, run_interpreted

UNITS = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22}
"""Half a unit in the last place, relative to a number; two units of f32, whose sums round, too."""


def templates(program: Program) -> list[UserKernel]:
    """The template kernel of each step that launches one."""
    return [
        kernel
        for step in program.plan.steps
        if isinstance(step, Launch)
        and isinstance(kernel := program.all_kernels[step.kernel], UserKernel)
    ]


def constant(kernel: UserKernel, name: str) -> object:
    """The value of a constant parameter."""
    return {p.name: p.value for p in kernel.params if isinstance(p, FixedParam)}[name]


def interpreted(kernel: UserKernel, buffers: Sequence[Any], sizes: Sequence[int]) -> None:
    """Runs a kernel, and writes the buffers that are no inputs."""
    grid = (sizes[-3], sizes[-2], sizes[-1])
    case = Case(emit_user_module(kernel), grid, tuple(buffers), tuple(sizes[:-GRID_SIZES]))
    (found,) = run_interpreted([case])
    assert not isinstance(found, str), found
    for buffer, after in zip(buffers, found, strict=True):
        if buffer.flags.writeable:  # others are inputs
            buffer[...] = after


def check_by_interpreter(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    operands: Sequence[Tensor],
    target: TargetFacts,
) -> Program:
    """The program of a function for a target; all its results are those of eager in float64.

    Results of 16 bits may be one unit in the last place away, because the interpreter cuts off the
    digits that they lack.
    """
    programs: list[Program] = []
    results: list[Any] = []

    def compile_graph(captured: CapturedGraph, gm: fx.GraphModule) -> Callable[..., object]:
        lowered = decompose_to_prims(captured.graph, max_sorted_elems=target.max_sorted_elems)
        programs.append(optimize(lowered.graph, target).program)
        verify_program(programs[-1])

        def run(*given: Tensor) -> object:
            sources = [given[s] for s in captured.sources if isinstance(s, int)]
            inputs = [as_array(g) if isinstance(g, Tensor) else g for g in sources]
            results.extend(run_program(programs[-1], inputs, run_template=interpreted))
            return gm.forward(*given)

        return run

    torch._dynamo.reset()
    torch.compile(function, backend=capturing(compile_graph))(*operands)
    wide = [x.double() if x.is_floating_point() else x for x in operands]
    exact = function(*wide)
    for found, expected in zip(
        results, exact if isinstance(exact, tuple) else (exact,), strict=True
    ):
        difference = np.abs(np.asarray(found, np.float64) - expected.numpy()).max()
        assert difference <= 2 * UNITS[operands[0].dtype] * expected.abs().max().item()
    (program,) = programs
    return program


def as_array(x: Tensor) -> Any:
    """The array with the tensor's strides."""
    elements = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    flat = x.as_strided((elements,), (1,))
    if x.dtype is torch.bfloat16:
        plain = flat.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    else:
        plain = flat.numpy()
    strides = [stride * x.element_size() for stride in x.stride()]
    return np.lib.stride_tricks.as_strided(plain, tuple(x.shape), strides)
