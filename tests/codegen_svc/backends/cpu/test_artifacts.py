"""Artifacts of the CPU backend: stages, vector code, valid objects, reproducible bytes."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from codegen_svc.backends.cpu.backend import BACKEND
from codegen_svc.backends.llvm_libraries import ABI
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.loop_ir import Compute, Load, Store
from kernelfarm.ir.text import parse_kernel
from tests.support.compiled_kernels import (
    built,
    kernel,
    param,
    pointwise,
    run,
    stage,
    stage_text,
    unless_it_runs,
)
from tests.support.loop_kernels.optimizer_shapes import (
    embedding,
    layer_norm_silu,
    reduce_first,
    reduce_last,
    softmax,
)

F = DType.F32
TARGETS = (
    *("cpu:aarch64", "cpu:aarch64-bf16", "cpu:aarch64-sve256"),
    *("cpu:x86-64-v3", "cpu:x86-64-v4"),
)
VECTOR_REGISTER = {
    "cpu:aarch64": r"\bv\d+\.4s",
    "cpu:aarch64-bf16": r"\bv\d+\.4s",
    "cpu:aarch64-sve256": r"\bz\d+\.s",
    "cpu:x86-64-v3": r"%ymm\d+",
    "cpu:x86-64-v4": r"%zmm\d+",
}
KERNELS = {
    "layer_norm": layer_norm_silu(symbol("s0"), 256),
    "softmax": softmax(symbol("s0"), symbol("s1")),
    "gelu_like": pointwise("erf", (F,), F, 5000),
    "column_sum": reduce_first("sum", F, F, 300, 400),
    "argmax": reduce_last("argmax", F, DType.I64, 10, 512),
    "bf16": pointwise("sigmoid", (DType.BF16,), DType.BF16, 4096),
}


def executes_level_4(test: Callable[..., None]) -> Callable[..., None]:
    """For tests that run code for AVX-512 beside that for AVX2."""
    for mark in unless_it_runs("cpu:x86-64-v4"):
        test = mark(test)
    return test


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_hot_loops_use_the_target_s_vector_registers(name: str, target: str) -> None:
    asm = stage_text(built(KERNELS[name], target), "asm")
    used = re.findall(VECTOR_REGISTER[target], asm)
    assert len(used) >= 2, asm[:3000]


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_an_embedding_are_copied_as_a_whole(target: str) -> None:
    assert "memcpy" in stage_text(built(embedding(64, 100, 256), target), "asm")


@executes_level_4
@pytest.mark.parametrize("name", ["sin", "pow", "erf", "exp", "log1p", "tanh"])
def test_both_levels_of_x86_compute_the_same(name: str) -> None:
    x = (np.random.default_rng(1).standard_normal(5000) * 4).astype(np.float32)
    sample = pointwise(name, (F, F) if name == "pow" else (F,), F, len(x))
    results = []
    for target in ("cpu:x86-64-v3", "cpu:x86-64-v4"):
        out = np.zeros(len(x), np.float32)
        assert run(sample, {"in0": x, "in1": x[::-1].copy(), "out0": out}, target=target) == 0
        results.append(out)
    np.testing.assert_array_equal(*results)


@executes_level_4
def test_level_3_reduces_as_level_4_does() -> None:
    x = np.random.default_rng(1).standard_normal((30, 700)).astype(np.float32).reshape(-1)
    for sample, size in (
        (softmax(30, 700), 21_000),
        (reduce_first("sum", F, F, 30, 700), 700),
        (reduce_last("amax", F, F, 30, 700), 30),
    ):
        results = []
        for target in ("cpu:x86-64-v3", "cpu:x86-64-v4"):
            out = np.zeros(size, np.float32)
            assert run(sample, {"in0": x, "out0": out}, target=target) == 0
            results.append(out)
        np.testing.assert_allclose(*results, rtol=3e-6)


def test_layer_norm_s_arithmetic_is_in_512_bit_vectors() -> None:
    asm = stage_text(built(layer_norm_silu(64, 1024), "cpu:x86-64-v4"), "asm")
    for instruction in ("vaddps", "vmulps", "vsubps", "vfmadd", "vdivps"):
        assert re.search(rf"{instruction}\w*\s.*%zmm", asm), instruction


def test_f32_sine_is_vectorized_without_gathers() -> None:
    asm = stage_text(built(pointwise("sin", (F,), F, 4096), "cpu:x86-64-v4"), "asm")
    for kind in ("ps", "pd"):  # usual angles in f32, large ones in f64
        assert re.search(rf"vf\w*madd\w*{kind}\s.*%zmm", asm), kind
    assert "vgather" not in asm


@pytest.mark.parametrize("target", TARGETS)
def test_every_stage_is_kept_as_text_beside_the_binaries(target: str) -> None:
    variant = built(KERNELS["softmax"], target)
    assert [s.name for s in variant.stages] == ["kernel", "llir", "llir_opt", "asm", "object", "so"]
    assert [s.is_text for s in variant.stages] == [True, True, True, True, False, False]
    assert variant.binary_stage == "so"
    assert variant.launch.arguments == ("buffer", "buffer", "size", "size", "threads")
    assert dict(variant.launch.extras)["abi"] == ABI
    assert parse_kernel(stage_text(variant, "kernel")) == KERNELS["softmax"]
    assert "define internal i32 @softmax.range" in stage_text(variant, "llir")


@pytest.mark.parametrize("target", TARGETS)
def test_object_and_library_are_elf_files_of_the_target(target: str) -> None:
    variant = built(KERNELS["layer_norm"], target)
    machine = "EM_AARCH64" if "aarch64" in target else "EM_X86_64"
    relocatable = ELFFile(io.BytesIO(stage(variant, "object")))
    library = ELFFile(io.BytesIO(stage(variant, "so")))
    assert (relocatable["e_type"], relocatable["e_machine"]) == ("ET_REL", machine)
    assert (library["e_type"], library["e_machine"]) == ("ET_DYN", machine)
    exported = [
        s.name
        for s in library.get_section_by_name(".dynsym").iter_symbols()
        if s["st_shndx"] != "SHN_UNDEF"
    ]
    assert exported == ["layer_norm_silu"]


@pytest.mark.third_party
@pytest.mark.parametrize("target", TARGETS)
def test_llvm_objdump_disassembles_the_object(target: str, tmp_path: Path) -> None:
    objdump = shutil.which("llvm-objdump-19") or shutil.which("llvm-objdump")
    if objdump is None:
        pytest.skip("NOT RUN: llvm-objdump is missing (Debian package llvm-19)")
    path = tmp_path / "kernel.o"
    path.write_bytes(stage(built(KERNELS["layer_norm"], target), "object"))
    done = subprocess.run(
        [objdump, "-d", "--mattr=+avx512f", str(path)]
        if "v4" in target
        else [objdump, "-d", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "<layer_norm_silu>:" in done.stdout
    assert "<unknown>" not in done.stdout


def test_assembly_stage_is_what_the_library_executes() -> None:
    """Every function of the assembly text is in the object, in the text's order."""
    variant = built(KERNELS["layer_norm"], "cpu:x86-64-v4")
    in_text = re.findall(
        r"^([\w.]+):\n", re.sub(r"\n\.L.*:\n", "\n", stage_text(variant, "asm")), re.M
    )
    symbols = ELFFile(io.BytesIO(stage(variant, "object"))).get_section_by_name(".symtab")
    functions = sorted(
        (s["st_value"], s.name)
        for s in symbols.iter_symbols()
        if s["st_info"]["type"] == "STT_FUNC"
    )
    assert [name for _, name in functions] == [n for n in in_text if not n.startswith(".")]


def test_fingerprint_is_a_stable_digest() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", BACKEND.fingerprint())
    assert BACKEND.fingerprint() == BACKEND.fingerprint()


def test_tools_are_found_with_their_versions() -> None:
    tools = {tool.name: tool for tool in BACKEND.tools()}
    assert tools["LLVM"].is_found and "LLVM 2" in tools["LLVM"].version
    assert tools["LLD"].is_found and "triton" in tools["LLD"].version


def test_name_that_is_no_identifier_is_rejected() -> None:
    bad = kernel('x" { evil', (param("out0", F, 1),), (), {"d0": 1})
    with pytest.raises(KernelRejectedError, match="no identifier"):
        built(bad)


def test_operation_without_meaning_on_a_type_is_rejected_with_its_name() -> None:
    d0 = symbol("d0")
    body = (Load("in0", d0), Compute("sqrt", (0,), DType.I32), Store("out0", d0, 1))
    bad = kernel("bad", (param("in0", DType.I32, 4), param("out0", DType.I32, 4)), body, {"d0": 4})
    with pytest.raises(KernelRejectedError, match="'sqrt' on i32"):
        built(bad)


def test_comments_cannot_leave_their_comment_lines() -> None:
    plain = pointwise("neg", (F,), F, 16)
    commented = type(plain)(
        plain.name,
        plain.params,
        plain.sizes,
        plain.outer,
        plain.reduction,
        plain.body,
        ('first\ndefine void @evil() {\nret void\n}\r\x0bmodule asm "x"\u2028x',),
    )
    llir = stage_text(built(commented, "cpu:x86-64-v3"), "llir")
    assert not [line for line in llir.splitlines() if "evil" in line and not line.startswith(";")]
    assert "evil" not in stage_text(built(commented, "cpu:x86-64-v3"), "asm")
