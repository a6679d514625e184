"""Runs template kernels of programs by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from codegen_svc.emitters.triton.user_module import emit_user_module
from kernelfarm.ir.program_ir import Launch, Program
from kernelfarm.ir.triton.user_kernel import GRID_SIZES, FixedParam, UserKernel
from tests.support.triton_interpreter import Case, run_interpreted

UNITS = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Half a unit in the last place, relative to a number."""


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


def as_array(x: Tensor) -> Any:
    """The array with the tensor's strides."""
    flat = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,))
    if x.dtype is torch.bfloat16:
        plain = flat.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    else:
        plain = flat.numpy()
    strides = [stride * x.element_size() for stride in x.stride()]
    return np.lib.stride_tricks.as_strided(plain, tuple(x.shape), strides)
