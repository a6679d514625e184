"""Users' Triton kernels compiled in this process for this processor, and launched on arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen_svc.backends.llvm_libraries import ABI
from codegen_svc.backends.llvm_user_kernel import build_llvm_user_kernel
from kernelfarm.client.loaders.cpu import CpuLoader
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import target_facts

Array = np.ndarray[Any, Any]
_LOADER = CpuLoader()


def built_for_processor(kernel: UserKernel) -> BuiltKernel:
    """The only variant of a kernel for this processor."""
    (built,) = build_llvm_user_kernel(kernel, target_facts(host_cpu_target()), ABI)
    return built


def run_on_processor(
    kernel: UserKernel,
    buffers: Sequence[Array],
    numbers: Sequence[int | float] = (),
    grid: Sequence[int] = (1,),
    threads: int = 2,
) -> None:
    """Compiles and launches a kernel, which changes the buffers; `numbers` are f32 if floats."""
    built = built_for_processor(kernel)
    library = next(s.content for s in built.stages if s.name == built.binary_stage)
    loaded = _LOADER.load(library, built.launch)
    words = [n if isinstance(n, int) else int(np.float32(n).view(np.uint32)) for n in numbers]
    table = (ctypes.c_uint64 * max(len(buffers), 1))(*(b.ctypes.data for b in buffers))
    launch = loaded.bind((*words, *grid, *(1,) * (3 - len(grid))))(ctypes.addressof(table), threads)
    assert launch() == 0
