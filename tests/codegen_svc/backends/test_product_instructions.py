"""Products are computed by each chip's instructions for matrices, as disassemblers show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from codegen_svc.backends.contract import Backend
from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.cuda.wheel_tools import nvidia_tool
from codegen_svc.backends.rocm.backend import BACKEND as ROCM
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import GpuFacts, all_targets, target_facts
from tests.support.product_kernels import gated, linear, scaled, sliced, vector
from tests.support.third_party import need, output_of

# Few rows are computed by instructions of a warp; a large tile by those of four warps, which take
# it from shared memory (Hopper: wgmma, in SASS HGMMA; Blackwell: tcgen05.mma, UTCHMMA).
INSTRUCTIONS = {
    "cuda:sm_80": ("HMMA", "HMMA"),
    "cuda:sm_89": ("HMMA", "HMMA"),
    "cuda:sm_90a": ("HMMA", "HGMMA"),
    "cuda:sm_100a": ("HMMA", "UTCHMMA"),
    "cuda:sm_120a": ("HMMA", "HMMA"),
    "rocm:gfx90a": ("v_mfma_f32_16x16x16_?bf16", "v_mfma_f32_32x32x8_?bf16"),
    "rocm:gfx942": ("v_mfma_f32_16x16x16_?bf16", "v_mfma_f32_32x32x8_?bf16"),
    "rocm:gfx950": ("v_mfma_f32_16x16x32_?bf16", "v_mfma_f32_32x32x16_?bf16"),
    "rocm:gfx1100": ("v_wmma_f32_16x16x16_bf16", "v_wmma_f32_16x16x16_bf16"),
    "rocm:gfx1201": ("v_wmma_f32_16x16x16_bf16", "v_wmma_f32_16x16x16_bf16"),
}
SHAPES = {"few rows": (linear(16, 1024, 512), 0), "many rows": (linear(1024, 1024, 512), 1)}
# The others take longer, and differ little from these: for example sm_89 from sm_80, gfx90a from
# gfx942. Tests of artifacts compile for all chips.
QUICK = {
    *((target, "many rows") for target in ("cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a")),
    *((target, "many rows") for target in ("cuda:sm_120a", "rocm:gfx942", "rocm:gfx1201")),
    *((target, "few rows") for target in ("cuda:sm_90a", "rocm:gfx950", "rocm:gfx1100")),
}


def cases() -> list[Any]:
    """Targets and shapes, slow ones marked."""
    pairs = [(target, shape) for target in INSTRUCTIONS for shape in SHAPES]
    slow = pytest.mark.slow
    return [pytest.param(*pair, marks=() if pair in QUICK else slow) for pair in pairs]


def variants(kernel: Kernel, target: str) -> tuple[BuiltKernel, ...]:
    facts = target_facts(target)
    backend: Backend = CUDA if facts.vendor == "cuda" else ROCM
    return backend.build(kernel, facts)


def stage(built: BuiltKernel, name: str) -> bytes:
    return next(s.content for s in built.stages if s.name == name)


def disassembled(built: BuiltKernel, target: str, folder: Path) -> str:
    """The binary's instructions; those of gfx950, which LLVM 19 does not know, as assembly."""
    if built.binary_stage == "hsaco" and target == "rocm:gfx950":
        return stage(built, "amdgcn").decode()
    path = folder / "kernel"
    path.write_bytes(stage(built, built.binary_stage))
    if built.binary_stage == "hsaco":
        need("llvm-objdump-19")
        return output_of("llvm-objdump-19", "-d", str(path))
    return output_of(str(nvidia_tool("nvdisasm")), str(path))


def assert_in_facts(used: str, gpu: GpuFacts) -> None:
    """The artifact states an instruction that the chip's facts have."""
    family, _, shape = used.partition(" ")
    forms = [form for form in gpu.multiplies("bf16") if form.family == family]
    assert forms, used
    if not shape:
        return
    m, n, *_ = (int(side) for side in shape.split("x"))
    assert any(
        m == form.m and (n == form.n or n in range(form.n, (form.max_n or 0) + 1, form.n))
        for form in forms
    ), used


def test_every_gpu_has_instructions_for_matrices_to_expect() -> None:
    gpus = {name for name, facts in all_targets().items() if facts.vendor in ("cuda", "rocm")}
    assert gpus == set(INSTRUCTIONS)


@pytest.mark.third_party
@pytest.mark.parametrize(("target", "shape"), cases())
def test_products_use_the_chips_instructions_for_matrices(
    target: str, shape: str, tmp_path: Path
) -> None:
    kernel, size = SHAPES[shape]
    gpu = target_facts(target).section(GpuFacts)
    aligned, general = variants(kernel, target)
    for built in (aligned, general):
        assert dict(built.launch.extras)["form"] == "product"
        text = disassembled(built, target, tmp_path)
        has_maps = shape == "many rows" and gpu.has_tensor_maps and built is aligned
        assert ("UTMALDG" in text) == has_maps
        assert ("tensor_map" in built.launch.arguments) == has_maps
        assert len(built.launch.tensor_maps) == 2 * has_maps
        assert ("buffer_load" in text) == (built.binary_stage == "hsaco")
        assert re.search(rf"\b{INSTRUCTIONS[target][size]}", text), target
        assert_in_facts(dict(built.launch.extras)["matrix_instructions"], gpu)
        assert built.launch.spills == 0
        assert built.launch.shared_bytes <= gpu.max_shared_bytes
        assert built.launch.registers <= gpu.max_registers


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "kernel"),
    [
        ("cuda:sm_90a", gated(64, 1024, 512)),
        ("cuda:sm_90a", linear(1000, 4096, 1024)),
        pytest.param("cuda:sm_90a", scaled(512), marks=pytest.mark.slow),
        ("cuda:sm_90a", sliced(4, 64, 1024, 256)),
        pytest.param("cuda:sm_80", sliced(4, 64, 1024, 256), marks=pytest.mark.slow),
        pytest.param("rocm:gfx942", sliced(4, 64, 1024, 256), marks=pytest.mark.slow),
        ("cuda:sm_90a", vector(1024, 512)),
        pytest.param("rocm:gfx942", vector(1024, 512), marks=pytest.mark.slow),
        ("rocm:gfx942", gated(64, 1024, 512)),
        pytest.param("rocm:gfx942", scaled(512), marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_what_is_fused_with_a_product_leaves_it_in_tiles(target: str, kernel: Kernel) -> None:
    for built in variants(kernel, target):
        assert dict(built.launch.extras)["form"] == "product"
        assert re.search(r"ttng\.warp_group_dot|tt\.dot", stage(built, "ttgir").decode())
        assert built.launch.spills == 0
