"""Ascend: the stub says what it is, the tiling fits, the Linalg computes what eager does."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elftools.elf.elffile import ELFFile

from codegen_svc.backends.ascend.adapter import find_adapter, lower_to_linalg
from codegen_svc.backends.ascend.backend import BACKEND
from codegen_svc.backends.ascend.bishengir import find_bishengir
from codegen_svc.backends.ascend.cores import check_cores
from codegen_svc.backends.ascend.elf_stub import write_elf
from codegen_svc.backends.ascend.kernel_object import BINARY_STAGE
from codegen_svc.emitters.triton.local_tiling import local_bytes, local_tiling
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.interpret import numpy_dtype
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.targets import LocalBufferFacts, target_facts
from tests.support.linalg_cpu import TOOLS, run_linalg
from tests.support.loop_kernels import emitter_shapes
from tests.support.third_party import need, output_of
from tests.support.triton_cases import assert_same, expected, random_buffers

pytestmark = pytest.mark.usefixtures("adapter")

TARGET = target_facts("ascend:910b")
CHIP = TARGET.section(LocalBufferFacts)
F16, F32 = DType.F16, DType.F32


@pytest.fixture(scope="module")
def layer_norm() -> BuiltKernel:
    if find_adapter() is None:
        pytest.skip("NOT RUN: triton-adapter-opt")
    return BACKEND.build(emitter_shapes.layer_norm_silu(), TARGET)[-1]


def _sections(built: BuiltKernel) -> dict[str, bytes]:
    content = next(s.content for s in built.stages if s.name == BINARY_STAGE)
    return {s.name: s.data() for s in ELFFile(io.BytesIO(content)).iter_sections()}


def _need_a_stub() -> None:
    if find_bishengir() is not None:
        pytest.skip("this machine makes real objects")


def test_stub_carries_linalg_tiling_and_launch_facts_and_says_so(layer_norm: BuiltKernel) -> None:
    _need_a_stub()
    sections = _sections(layer_norm)
    linalg = next(s.content for s in layer_norm.stages if s.name == "linalg")
    assert sections[".kernelfarm.linalg"] == linalg
    tiling = json.loads(sections[".kernelfarm.tiling"])
    assert tiling["unified_buffer_bytes"] <= tiling["unified_buffer_limit_bytes"] == 192 * 1024
    assert (tiling["cores"], tiling["load_buffers"]) == ("vector", 1)
    launch = json.loads(sections[".kernelfarm.launch"])
    assert launch["symbol"] == "fused_native_layer_norm_silu_5e1f"
    assert launch["arguments"].count("buffer") == 4
    assert b"cannot run" in sections[".kernelfarm.stub"]
    assert layer_norm.is_stub and layer_norm.stub_reason.encode() == sections[".kernelfarm.stub"]


def test_stub_is_a_relocatable_object_for_no_machine_that_names_the_kernel() -> None:
    elf = ELFFile(io.BytesIO(write_elf("kernel_a", ((".a", b"first"), (".b", b"")))))
    assert (elf["e_type"], elf["e_machine"]) == ("ET_REL", "EM_NONE")
    symbols: Any = elf.get_section_by_name(".symtab")
    (symbol,) = symbols.get_symbol_by_name("kernel_a")
    assert elf.get_section(symbol["st_shndx"]).name == ".a"
    assert symbol["st_size"] == len(b"first")


@pytest.mark.third_party
def test_stub_is_read_by_llvm_objdump_and_readelf(layer_norm: BuiltKernel, tmp_path: Path) -> None:
    _need_a_stub()
    need("llvm-objdump-19", "llvm-readelf-19")
    path = tmp_path / "kernel.o"
    path.write_bytes(next(s.content for s in layer_norm.stages if s.name == BINARY_STAGE))
    headers = output_of("llvm-objdump-19", "--section-headers", "--syms", str(path))
    assert ".kernelfarm.linalg" in headers
    assert layer_norm.launch.symbol in headers
    header = output_of("llvm-readelf-19", "--file-header", str(path))
    assert "REL (Relocatable file)" in header
    assert "Machine:                           None" in header


@pytest.mark.parametrize("name", ["layer_norm_silu", "wide_softmax", "column_mean", "dynamic_add"])
def test_tiling_fits_the_unified_buffer_and_spreads_over_the_cores(name: str) -> None:
    kernel = emitter_shapes.ALL[name]
    tiling = local_tiling(kernel, TARGET, 32)
    assert tiling is not None
    assert local_bytes(kernel, tiling, CHIP) <= CHIP.size_bytes
    assert tiling.xblock % tiling.xsub == 0
    rows = kernel.outer[0].extent
    if rows.is_constant:
        assert -(-rows.as_int() // tiling.xblock) <= CHIP.vector_cores


def test_tall_kernels_walk_their_rows_in_sub_blocks() -> None:
    tiling = local_tiling(emitter_shapes.layer_norm_silu(F16, 48 * 1000, 1024), TARGET, 32)
    assert tiling is not None
    assert tiling.xsub < tiling.xblock
    assert tiling.is_persistent


def test_names_longer_than_the_runtime_takes_are_refused() -> None:
    kernel = emitter_shapes.kernel("k" * 50, [], {}, {}, emitter_shapes.Body())
    with pytest.raises(KernelRejectedError, match=r"50 characters.*at most 49"):
        BACKEND.build(kernel, TARGET)


def test_f64_arithmetic_is_refused_by_name() -> None:
    kernel = emitter_shapes.scalar_op("exp", (DType.F64,), DType.F64, 8)
    with pytest.raises(KernelRejectedError, match=r"exp on f64.*ascend:910b"):
        BACKEND.build(kernel, TARGET)


def test_left_over_triton_operations_are_refused() -> None:
    # The adapter exits with 0 and leaves calls of device libraries as they are.
    ttir = """
    module { tt.func public @k(%p: !tt.ptr<f32>) {
      %0 = tt.load %p : !tt.ptr<f32>
      %1 = tt.extern_elementwise %0 {libname = "", libpath = "", pure = true, symbol = "__nv_asinf"}
        : (f32) -> f32
      tt.store %p, %1 : !tt.ptr<f32>
      tt.return
    } }"""
    with pytest.raises(KernelRejectedError, match=r"tt\.extern_elementwise"):
        lower_to_linalg("k", ttir)


def test_a_kernel_that_needs_cube_cores_without_a_tiling_for_them_is_refused() -> None:
    ttir = """
    module { tt.func public @k(%p: !tt.ptr<f16>, %q: !tt.ptr<f32>) {
      %zero = arith.constant dense<0.0> : tensor<16x16xf32>
      %from = tt.splat %p : !tt.ptr<f16> -> tensor<16x16x!tt.ptr<f16>>
      %to = tt.splat %q : !tt.ptr<f32> -> tensor<16x16x!tt.ptr<f32>>
      %x = tt.load %from : tensor<16x16x!tt.ptr<f16>>
      %d = tt.dot %x, %x, %zero, inputPrecision = ieee
        : tensor<16x16xf16> * tensor<16x16xf16> -> tensor<16x16xf32>
      tt.store %to, %d : tensor<16x16x!tt.ptr<f32>>
      tt.return
    } }"""
    linalg = lower_to_linalg("k", ttir)
    with pytest.raises(KernelRejectedError, match="kernel k needs cube and vector cores"):
        check_cores("k", linalg, None)


def test_broken_triton_ir_is_refused_with_the_adapters_words() -> None:
    with pytest.raises(KernelRejectedError, match="error:"):
        lower_to_linalg("k", "module { tt.func public @k() { oops } }")


def _run_on_cpu(kernel: Kernel, arrays: list[np.ndarray[Any, Any]], folder: Path) -> None:
    run_linalg(BACKEND.build(kernel, TARGET)[-1], arrays, {}, folder)


@pytest.mark.third_party
def test_linalg_of_layer_norm_and_silu_equals_eager(
    layer_norm: BuiltKernel, tmp_path: Path
) -> None:
    need(*TOOLS)
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(s, dtype=torch.float16) for s in ((32, 128), (128,), (128,)))
    out = np.zeros(32 * 128, dtype=np.float16)
    arrays = [t.numpy().reshape(-1) for t in (x, weight, bias)]
    run_linalg(layer_norm, [*arrays, out], {}, tmp_path)
    wide = [t.to(torch.float64) for t in (x, weight, bias)]
    normal = torch.nn.functional.layer_norm(wide[0], (128,), wide[1], wide[2], 1e-5)
    eager = torch.nn.functional.silu(normal)
    # One rounding to f16 of a value computed in f32.
    np.testing.assert_allclose(out.reshape(32, 128), eager.numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.third_party
@pytest.mark.parametrize("dtype", [F32, F16])
def test_linalg_of_h_equals_eager(dtype: DType, tmp_path: Path) -> None:
    need(*TOOLS)
    torch.manual_seed(1)
    a, b = torch.randn(4, 8), torch.randn(4, 8)
    if dtype is F16:
        a, b = a.half(), b.half()
    kind = numpy_dtype(dtype)
    sums, out = np.zeros(4, dtype=kind), np.zeros(4, dtype=kind)
    first, second = tmp_path / "sum", tmp_path / "softmax"
    first.mkdir()
    second.mkdir()
    _run_on_cpu(
        emitter_shapes.h_sum(dtype=dtype),
        [a.numpy().reshape(-1), b.numpy().reshape(-1), sums],
        first,
    )
    _run_on_cpu(emitter_shapes.h_softmax(dtype=dtype), [sums, out], second)
    total = (torch.ceil(a) + torch.floor(b)).sum(dim=1)
    np.testing.assert_array_equal(sums, total.numpy())
    eager = (torch.softmax(total.double(), 0) * 10) ** 3
    tolerance = 2e-6 if dtype is F32 else 2e-3
    np.testing.assert_allclose(out, eager.numpy(), rtol=tolerance, atol=1e-6)


LINALG_KERNELS = [
    "softmax",
    "rms_norm_residual",
    "rope_cat",
    "embedding",
    "column_mean",
    "random_floats",
    "argmax",
    "dynamic_softmax",
    "dynamic_add",
    "lone_point",
    "one_element_behind_a_mask",
    "element_by_row",
    "element_by_column",
    "looked_up_norm",
    "looked_up_norms",
]


# slow: every second kernel; MLIR's tools and clang take half a second for each.
LINALG = [
    pytest.param(name, marks=[pytest.mark.slow] if number % 2 else [])
    for number, name in enumerate(LINALG_KERNELS)
]


@pytest.mark.sweep
@pytest.mark.third_party
@pytest.mark.parametrize("name", LINALG)
def test_linalg_equals_the_loop_interpreter(name: str, tmp_path: Path) -> None:
    need(*TOOLS)
    kernel = emitter_shapes.ALL[name]
    sizes = {s.name: size for s, size in zip(kernel.sizes, (5, 37), strict=False)}
    buffers = random_buffers(kernel, sizes)
    reference = expected(kernel, buffers, sizes)
    for number, built in enumerate(BACKEND.build(kernel, TARGET)):
        arrays = {name: array.copy() for name, array in buffers.items()}
        folder = tmp_path / str(number)
        folder.mkdir()
        run_linalg(built, [arrays[p.name] for p in kernel.params], sizes, folder)
        for p in kernel.params:
            if p.access is not Access.READ:
                assert_same(p.dtype, arrays[p.name], reference[p.name])
