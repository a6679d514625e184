"""8-bit floats on accelerators: the same bits as PyTorch's, in the interpreter and on Ascend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from codegen_svc.backends.ascend.adapter import find_adapter
from codegen_svc.backends.ascend.backend import BACKEND as ASCEND
from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import all_targets, target_facts
from tests.support.linalg_cpu import TOOLS, run_linalg
from tests.support.loop_kernels import emitter_shapes
from tests.support.loop_kernels.emitter_shapes import BOOL, D0, F32, I64, Body, kernel, param
from tests.support.third_party import need
from tests.support.triton_cases import interpreter_case
from tests.support.triton_interpreter import run_interpreted

Array = np.ndarray[Any, Any]

TORCH = {DType.F8E4M3FN: torch.float8_e4m3fn, DType.F8E5M2: torch.float8_e5m2}
EVERY = np.arange(256, dtype=np.uint8)
CHIPS = [name for name, facts in all_targets().items() if facts.vendor == "cuda"]


def widening(f8: DType) -> tuple[Kernel, list[Array], Array]:
    """All 256 patterns as f32: kernel, buffers of which the last is written, what PyTorch gives."""
    return _widening(f8, F32, np.float32)


def widening_to_f16(f8: DType) -> tuple[Kernel, list[Array], Array]:
    """As `widening`, as f16."""
    return _widening(f8, DType.F16, np.float16)


def _widening(
    f8: DType, wide: DType, in_numpy: type[np.floating[Any]]
) -> tuple[Kernel, list[Array], Array]:
    reference = torch.from_numpy(EVERY.copy()).view(TORCH[f8]).float().numpy().astype(in_numpy)
    buffers = [EVERY.copy(), np.zeros(256, in_numpy)]
    return emitter_shapes.scalar_op("convert", (f8,), wide, 256), buffers, reference


def narrowing(f8: DType) -> tuple[Kernel, list[Array], Array]:
    """Numbers of all sizes, and every number between two neighbours, as patterns."""
    rng = np.random.default_rng(3)
    every = torch.from_numpy(EVERY.copy()).view(TORCH[f8]).float().numpy()
    finite = np.sort(every[np.isfinite(every)])
    middles = (finite[1:] + finite[:-1]) / 2
    any_bits = rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 480, 57344, 61440], np.float32)
    beside = np.concatenate([np.nextafter(middles, np.float32(np.inf)), middles])
    x = np.concatenate([finite, beside, any_bits, special]).astype(np.float32)
    reference = torch.from_numpy(x).to(TORCH[f8]).view(torch.uint8).numpy()
    buffers = [x, np.zeros(len(x), np.uint8)]
    return emitter_shapes.scalar_op("convert", (F32,), f8, len(x)), buffers, reference


def padding(f8: DType) -> tuple[Kernel, list[Array], Array]:
    """out[i] = in[i] where i < 40 and in[i] is above 1, else 1.5 or 2.5."""
    b = Body()
    is_early = b.compute("lt", b.position(I64, D0), b.literal(I64, 40), dtype=BOOL)
    x = b.load("in0", D0, is_early, b.literal(f8, 1.5))
    wide = b.compute("convert", x, dtype=F32)
    is_above = b.compute("gt", wide, b.literal(F32, 1.0), dtype=BOOL)
    b.store("out0", D0, b.compute("where", is_above, x, b.literal(f8, 2.5), dtype=f8))
    params = [param("in0", f8, 40), param("out0", f8, 100)]
    x = torch.linspace(-3, 3, 40).to(TORCH[f8])
    whole = torch.cat([x.float(), torch.full((60,), 1.5)])
    reference = torch.where(whole > 1, whole, 2.5).to(TORCH[f8]).view(torch.uint8).numpy()
    buffers = [x.view(torch.uint8).numpy(), np.zeros(100, np.uint8)]
    return kernel("fused_pad_where_8f8f", params, {"d0": 100}, {}, b), buffers, reference


CASES = {
    f"{make.__name__}-{f8.value}": make(f8)
    for make in (widening, widening_to_f16, narrowing, padding)
    for f8 in TORCH
}


def assert_same_bits(got: Array, reference: Array) -> None:
    """Asserts that both are equal; NaN may have any bits unless it is an 8-bit float."""
    np.testing.assert_array_equal(got, reference)
    if reference.dtype.kind == "f":
        is_number = ~np.isnan(reference)
        np.testing.assert_array_equal(np.signbit(got[is_number]), np.signbit(reference[is_number]))


@pytest.fixture(scope="module")
def interpreted() -> dict[str, tuple[Array, ...] | str]:
    launches = []
    for made, buffers, _ in CASES.values():
        named = {p.name: b.copy() for p, b in zip(made.params, buffers, strict=True)}
        launches.append(interpreter_case(made, named, {}))
    return dict(zip(CASES, run_interpreted(launches), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_source_gives_pytorch_s_bits(name: str, interpreted: dict[str, Any]) -> None:
    result = interpreted[name]
    assert not isinstance(result, str), result
    assert_same_bits(result[-1], CASES[name][2])


@pytest.mark.parametrize("f8", TORCH, ids=lambda f8: f8.value)
def test_chips_that_have_an_instruction_widen_pairs_by_it(f8: DType) -> None:
    """NVIDIA, "PTX ISA", `cvt`: its results are f16, which has all values of both types."""
    kernel, _, _ = widening(f8)
    pair = {DType.F8E4M3FN: "e4m3x2", DType.F8E5M2: "e5m2x2"}[f8]
    for name in CHIPS:
        for built in CUDA.build(kernel, target_facts(name)):
            (ptx,) = (stage.content.decode() for stage in built.stages if stage.name == "ptx")
            assert (f"cvt.rn.f16x2.{pair}" in ptx) is (name != "cuda:sm_80")


# slow: all but one; in every run, the source that becomes Linalg gives these bits in all cases.
LINALG_CASES = [
    pytest.param(name, marks=[pytest.mark.slow] if number else [])
    for number, name in enumerate(CASES)
]


@pytest.mark.third_party
@pytest.mark.parametrize("name", LINALG_CASES)
def test_linalg_gives_pytorch_s_bits(name: str, tmp_path: Path) -> None:
    need(*TOOLS)
    if find_adapter() is None:
        pytest.skip("NOT RUN: triton-adapter-opt")
    made, buffers, reference = CASES[name]
    arrays = [buffer.copy() for buffer in buffers]
    run_linalg(ASCEND.build(made, target_facts("ascend:910b"))[-1], arrays, {}, tmp_path)
    assert_same_bits(arrays[-1], reference)
