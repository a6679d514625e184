"""Inputs for hand-built kernels, and the results of the interpreter as the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import (
    Tiling,
    gpu_tiling,
    needs_64_bit_indices,
    program_count,
)
from kernelfarm.dtypes import DType
from kernelfarm.ir.interpret import numpy_dtype, run_kernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import target_facts
from tests.support.triton_interpreter import Case

Array = np.ndarray[Any, Any]

# Relative rounding of each type, for a few operations.
TOLERANCE = {
    DType.F64: 1e-12,
    DType.F32: 4e-6,
    DType.F16: 2e-3,
    DType.BF16: 1.6e-2,
}


def random_array(dtype: DType, count: int, seed: int) -> Array:
    """`count` random elements: floats around 0, integers -5..5, bools both."""
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        return (rng.standard_normal(count) * 2).astype(numpy_dtype(dtype))
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(np.bool_)
    low = 0 if dtype is DType.U8 else -5
    return rng.integers(low, 6, count).astype(numpy_dtype(dtype))


def random_buffers(kernel: Kernel, sizes: dict[str, int], seed: int = 7) -> dict[str, Array]:
    """A buffer for each parameter; outputs are random too, so that elements left out show."""
    return {
        p.name: random_array(p.dtype, p.size_elems.evaluate(sizes), seed + position)
        for position, p in enumerate(kernel.params)
    }


def expected(kernel: Kernel, buffers: dict[str, Array], sizes: dict[str, int]) -> dict[str, Array]:
    """The buffers after the oracle ran the kernel."""
    after = {name: array.copy() for name, array in buffers.items()}
    with np.errstate(all="ignore"):
        run_kernel(kernel, after, sizes)
    return after


def interpreter_case(
    kernel: Kernel,
    buffers: dict[str, Array],
    sizes: dict[str, int],
    tiling: Tiling | None = None,
) -> Case:
    """The kernel's launch in Triton's interpreter, by default with the tiling for an H100."""
    target = target_facts("cuda:sm_90a")
    if tiling is None:
        tiling = gpu_tiling(kernel, target, 64 if needs_64_bit_indices(kernel) else 32)
    if tiling is None:
        raise AssertionError("every kernel has a first tiling")
    # The interpreter runs no assembly, and reads NaN of an 8-bit float as a number; every form has
    # a text without them.
    rules = replace(scalar_rules(target, kernel), takes_assembly=False, widens_float8=False)
    source = emit_triton(kernel, tiling, rules)
    programs = program_count(kernel, tiling).evaluate(sizes)
    arrays = tuple(buffers[p.name] for p in kernel.params)
    return Case(source, programs, arrays, tuple(sizes[s.name] for s in kernel.sizes))


def assert_same(dtype: DType, got: Array, reference: Array, scale: float = 1.0) -> None:
    """Equal within the type's tolerance; NaN and infinities at the same positions."""
    if not dtype.is_float:
        np.testing.assert_array_equal(got, reference)
        return
    tolerance = TOLERANCE[dtype] * scale
    np.testing.assert_allclose(
        got.astype(np.float64), reference.astype(np.float64), rtol=tolerance, atol=tolerance
    )
