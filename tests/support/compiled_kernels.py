"""Kernels built by the CPU backend, loaded by the client, and called on NumPy arrays."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from codegen_svc.backends.cpu.backend import BACKEND
from codegen_svc.emitters.llvm.dots import Dots, dots_of
from kernelfarm.client.loaders.cpu import CpuKernel, CpuLoader
from kernelfarm.client.loaders.host_target import host_cpu_target, this_processor
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import IntLike, as_expr, symbol
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import (
    Access,
    Axis,
    Compute,
    Kernel,
    Load,
    Param,
    Statement,
    Store,
)
from kernelfarm.targets import LlvmFacts, target_facts
from tests.support.not_run import PREFIX, PROCESSOR

NUMPY = {
    DType.F64: np.dtype(np.float64),
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.I64: np.dtype(np.int64),
    DType.I32: np.dtype(np.int32),
    DType.I16: np.dtype(np.int16),
    DType.I8: np.dtype(np.int8),
    DType.U8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_),
}
LOADER = CpuLoader()


def run_targets() -> list[Any]:
    """The CPU targets of this architecture, as parameters; those that it cannot run are NOT RUN."""
    names = (
        ("cpu:aarch64",)
        if this_processor().name == "aarch64"
        else ("cpu:x86-64-v3", "cpu:x86-64-v4")
    )
    return [pytest.param(name, marks=unless_it_runs(name)) for name in names]


def dots(target: str) -> Dots:
    """A target's instructions that multiply several terms of a lane."""
    return dots_of(target_facts(target).section(LlvmFacts))


def unless_it_runs(name: str) -> list[pytest.MarkDecorator]:
    """A mark that skips tests that run code of a target, if this machine cannot."""
    if name in this_processor().targets():
        return []
    return [pytest.mark.skip(reason=f"{PREFIX}{PROCESSOR}what {name} needs")]


def built(kernel: Kernel, target: str = "") -> BuiltKernel:
    """The kernel's general variant, for this machine by default."""
    return _built(kernel, target or host_cpu_target())


@lru_cache(maxsize=256)
def _built(kernel: Kernel, target: str) -> BuiltKernel:
    return BACKEND.build(kernel, target_facts(target))[-1]


def stage(variant: BuiltKernel, name: str) -> bytes:
    return next(s.content for s in variant.stages if s.name == name)


def stage_text(variant: BuiltKernel, name: str) -> str:
    return stage(variant, name).decode()


def loaded(kernel: Kernel, target: str = "") -> CpuKernel:
    variant = built(kernel, target)
    return LOADER.load(stage(variant, "so"), variant.launch)


def run(
    kernel: Kernel,
    buffers: dict[str, np.ndarray],
    sizes: dict[str, int] | None = None,
    *,
    threads: int = 1,
    target: str = "",
) -> int:
    """Runs the compiled kernel in place on flat arrays; returns the result of its entry point."""
    arrays = [buffers[p.name] for p in kernel.params]
    for array, param in zip(arrays, kernel.params, strict=True):
        assert array.dtype == NUMPY[param.dtype], (param.name, array.dtype)
        assert array.flags.c_contiguous
    table = (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
    values = tuple((sizes or {})[s.name] for s in kernel.sizes)
    launch = loaded(kernel, target).bind(values)
    return launch(ctypes.addressof(table), threads)()


def param(name: str, dtype: DType, size: IntLike) -> Param:
    """A buffer parameter; its access follows from its name: `in0`, `out0`, `inout0`."""
    access = Access.READ
    if name.startswith("inout"):
        access = Access.READ_WRITE
    elif name.startswith("out"):
        access = Access.WRITE
    return Param(name, dtype, as_expr(size), access)


def kernel(
    name: str,
    params: tuple[Param, ...],
    body: tuple[Statement, ...],
    outer: dict[str, IntLike] | None = None,
    reduction: dict[str, IntLike] | None = None,
    sizes: tuple = (),
) -> Kernel:
    def axes(extents: dict[str, IntLike] | None) -> tuple[Axis, ...]:
        return tuple(Axis(k, as_expr(v)) for k, v in (extents or {}).items())

    return Kernel(name, params, sizes, axes(outer), axes(reduction), body)


def pointwise(op: str, operands: tuple[DType, ...], result: DType, count: int) -> Kernel:
    """out0[i] = op(in0[i], in1[i], ...); narrow floats are computed in f32."""
    d0 = symbol("d0")
    body: list[Statement] = [Load(f"in{k}", d0) for k in range(len(operands))]
    arguments = []
    for number, dtype in enumerate(operands):
        if dtype.compute_dtype is dtype or op == "convert":
            arguments.append(number)
        else:
            body.append(Compute("convert", (number,), dtype.compute_dtype))
            arguments.append(len(body) - 1)
    wide = result if op == "convert" else result.compute_dtype
    body.append(Compute(op, tuple(arguments), wide))
    if wide is not result:
        body.append(Compute("convert", (len(body) - 1,), result))
    body.append(Store("out0", d0, len(body) - 1))
    params = [param(f"in{k}", dtype, count) for k, dtype in enumerate(operands)]
    params.append(param("out0", result, count))
    names = "_".join(d.value for d in (*operands, result))
    return kernel(f"{op}_{names}", tuple(params), tuple(body), {"d0": count})


def both(kernel: Kernel, buffers: dict[str, np.ndarray], sizes: dict[str, int]) -> None:
    """Runs the kernel compiled and interpreted on copies, and compares what it wrote."""
    compiled = {name: array.copy() for name, array in buffers.items()}
    run_kernel(kernel, buffers, sizes)
    assert run(kernel, compiled, sizes, threads=2) == 0
    for param in kernel.params:
        if param.access is not Access.READ:
            np.testing.assert_allclose(
                compiled[param.name], buffers[param.name], rtol=1e-5, atol=1e-6
            )


def assert_as_interpreted(
    kernel: Kernel, buffers: dict[str, np.ndarray], sizes: dict[str, int], rtol: float = 0.0
) -> None:
    """A compiled kernel writes what the interpreter writes, within `rtol`."""
    expected = {name: array.copy() for name, array in buffers.items()}
    with np.errstate(all="ignore"):
        run_kernel(kernel, expected, sizes)
    assert run(kernel, buffers, sizes) == 0
    for name, array in buffers.items():
        np.testing.assert_allclose(
            array.astype(np.float64), expected[name].astype(np.float64), rtol=rtol, err_msg=name
        )
