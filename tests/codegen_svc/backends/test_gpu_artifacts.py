"""GPU binaries as other tools read them: chip, symbol of the kernel, use of resources."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from codegen_svc.backends.contract import Backend
from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.cuda.backend import TOOLCHAIN
from codegen_svc.backends.cuda.cubin_facts import read_cubin
from codegen_svc.backends.cuda.wheel_tools import nvidia_tool
from codegen_svc.backends.rocm.backend import BACKEND as ROCM
from codegen_svc.backends.rocm.hsaco_facts import read_hsaco
from codegen_svc.backends.triton_assumptions import plan_variants
from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.backends.triton_split_rows import split_forms
from codegen_svc.backends.triton_toolchain import CompileTarget, compile_triton
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import gpu_tiling
from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError, KernelRejectedError
from kernelfarm.ir.artifact import BuiltKernel, GuardOp, GuardSubject
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import GpuFacts, all_targets, target_facts
from tests.support.loop_kernels import emitter_shapes
from tests.support.third_party import need, output_of

CUDA_TARGETS = [name for name, facts in all_targets().items() if facts.vendor == "cuda"]
ROCM_TARGETS = [name for name, facts in all_targets().items() if facts.vendor == "rocm"]
BACKENDS: dict[str, Backend] = {"cuda": CUDA, "rocm": ROCM}

# An instruction of a listing, behind its address and perhaps a predicate; and those of memory.
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)")
MEMORY_INSTRUCTIONS = frozenset(
    ("LDG", "STG", "LD", "ST", "LDGSTS", "ATOMG", "RED", "REDG", "UBLKCP", "UTMALDG", "UTMASTG")
)

CUDA_STAGES = ["kernel", "triton", "ttir", "ttgir", "llir", "ptx", "cubin"]
ROCM_STAGES = ["kernel", "triton", "ttir", "ttgir", "llir", "amdgcn", "hsaco"]


@lru_cache
def build(target: str, kernel: str) -> tuple[BuiltKernel, ...]:
    facts = target_facts(target)
    return BACKENDS[facts.vendor].build(emitter_shapes.ALL[kernel], facts)


def content_of(built: BuiltKernel, stage: str) -> bytes:
    return next(s.content for s in built.stages if s.name == stage)


def binaries(target: str, kernel: str) -> Iterator[tuple[BuiltKernel, bytes]]:
    for built in build(target, kernel):
        yield built, content_of(built, built.binary_stage)


def check_limits(target: str, kernel: str) -> None:
    gpu = target_facts(target).section(GpuFacts)
    for built in build(target, kernel):
        launch = built.launch
        assert 0 < launch.registers <= gpu.max_registers
        assert launch.shared_bytes <= gpu.max_shared_bytes
        assert launch.spills == 0
        assert launch.num_warps * launch.warp_size <= gpu.max_threads_per_block


def check_cubins(target: str, kernel: str, folder: Path) -> None:
    """The cuobjdump and nvdisasm of the Triton wheel accept each variant."""
    arch = target_facts(target).arch
    for number, (built, cubin) in enumerate(binaries(target, kernel)):
        path = folder / f"{number}.cubin"
        path.write_bytes(cubin)
        dumped = output_of(str(nvidia_tool("cuobjdump")), "--dump-resource-usage", str(path))
        match = re.search(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", dumped)
        assert match is not None, dumped
        assert match.group(1) == built.launch.symbol
        assert int(match.group(2)) == built.launch.registers
        assert int(match.group(3)) == built.launch.spills
        listed = output_of(str(nvidia_tool("cuobjdump")), "--list-elf", str(path))
        assert f".{arch}.cubin" in listed
        assert f".text.{built.launch.symbol}" in output_of(str(nvidia_tool("nvdisasm")), str(path))


@pytest.mark.parametrize("target", CUDA_TARGETS)
def test_cubins_are_read_by_nvidias_tools(target: str, tmp_path: Path) -> None:
    check_cubins(target, "layer_norm_silu", tmp_path)
    check_limits(target, "layer_norm_silu")


@pytest.mark.sweep
@pytest.mark.parametrize("target", CUDA_TARGETS)
@pytest.mark.parametrize("kernel", ["softmax", "long_softmax", "column_mean"])
def test_a_kernel_touches_no_memory_before_the_one_ahead_has_ended(
    target: str, kernel: str, tmp_path: Path
) -> None:
    has_launches = target_facts(target).section(GpuFacts).has_programmatic_launches
    for number, (built, cubin) in enumerate(binaries(target, kernel)):
        assert built.launch.programmatic_launch == has_launches
        path = tmp_path / f"{number}.cubin"
        path.write_bytes(cubin)
        found = INSTRUCTION.findall(output_of(str(nvidia_tool("nvdisasm")), "-c", str(path)))
        accesses = [n for n, name in enumerate(found) if name.split(".")[0] in MEMORY_INSTRUCTIONS]
        assert accesses
        if not has_launches:
            assert not {"ACQBULK", "PREEXIT"} & {*found}
            continue
        assert found.count("ACQBULK") == found.count("PREEXIT") == 1
        assert found.index("ACQBULK") < found.index("PREEXIT")
        assert found.index("ACQBULK") < accesses[0]


@pytest.mark.parametrize("target", ROCM_TARGETS)
def test_code_objects_name_their_chip_and_kernel(target: str) -> None:
    facts = target_facts(target)
    for built, hsaco in binaries(target, "layer_norm_silu"):
        noted = read_hsaco(hsaco, built.launch.symbol)
        assert noted.target.endswith(facts.arch)
        assert noted.wave_size == facts.section(GpuFacts).warp_size == built.launch.warp_size
        assert noted.vector_spills == noted.scalar_spills == 0
        elf = ELFFile(io.BytesIO(hsaco))
        assert (elf["e_type"], elf["e_machine"]) == ("ET_DYN", "EM_AMDGPU")
    check_limits(target, "layer_norm_silu")


@pytest.mark.third_party
@pytest.mark.parametrize("target", [t for t in ROCM_TARGETS if t != "rocm:gfx950"])
def test_code_objects_are_disassembled_by_llvm(target: str, tmp_path: Path) -> None:
    # LLVM 19 does not know gfx950; its notes are checked above.
    need("llvm-objdump-19")
    for built, hsaco in binaries(target, "layer_norm_silu"):
        path = tmp_path / "kernel.hsaco"
        path.write_bytes(hsaco)
        text = output_of("llvm-objdump-19", "-d", str(path))
        assert f"<{built.launch.symbol}>:" in text
        assert "s_endpgm" in text


def test_every_stage_is_kept_as_text_beside_the_binary() -> None:
    for target, stages in (("cuda:sm_90a", CUDA_STAGES), ("rocm:gfx942", ROCM_STAGES)):
        for built in build(target, "layer_norm_silu"):
            assert [s.name for s in built.stages] == stages
            assert [s.is_text for s in built.stages] == [True] * 6 + [False]
            parsed = parse_kernel(content_of(built, "kernel").decode())
            assert parsed.body == emitter_shapes.ALL["layer_norm_silu"].body


def test_a_guarded_variant_assumes_alignment_and_loads_wide() -> None:
    aligned, general = build("cuda:sm_90a", "dynamic_add")[-2:]
    assert not general.guard
    pointers = [a for a in aligned.guard if a.subject is GuardSubject.PARAM_ADDRESS]
    assert [(a.name, a.op, a.operand) for a in pointers] == [
        (position, GuardOp.DIVISIBLE, 16) for position in range(3)
    ]
    assert b"ld.global.v4.b32" in content_of(aligned, "ptx")
    assert b"ld.global.v4.b32" not in content_of(general, "ptx")


def test_a_guarded_variant_assumes_amd_buffers_below_2_gib() -> None:
    aligned, general = build("rocm:gfx942", "dynamic_add")[-2:]
    extents = {a.name: a.operand for a in aligned.guard if a.subject is GuardSubject.PARAM_EXTENT}
    # f16: 2**30 elements; in1 has 48 elements whatever the sizes are and needs no atom.
    assert extents == {0: 2**30, 2: 2**30}
    assert b"buffer_store" in content_of(aligned, "amdgcn")
    assert b"buffer_store" not in content_of(general, "amdgcn")


def test_static_buffers_below_2_gib_need_no_guard() -> None:
    (*_, general) = build("rocm:gfx942", "layer_norm_silu")
    assert not general.guard
    assert b"buffer_load" in content_of(general, "amdgcn")


def test_varying_row_lengths_have_a_variant_for_multiples_of_16() -> None:
    even, aligned, general = build("cuda:sm_90a", "dynamic_softmax")[-3:]
    divisible = [
        a for a in even.guard if a.subject is GuardSubject.SYMBOL and a.op is GuardOp.DIVISIBLE
    ]
    assert [(a.name, a.operand) for a in divisible] == [("s1", 16)]
    assert set(aligned.guard) < set(even.guard)
    assert dict(even.launch.extras)["index_bits"] == "32"
    assert dict(general.launch.extras)["index_bits"] == "64"
    wide_load = re.compile(rb"ld\.global\S*\.v4")
    assert wide_load.search(content_of(even, "ptx"))
    assert not wide_load.search(content_of(aligned, "ptx"))


def test_varying_row_lengths_have_variants_that_hold_a_whole_row() -> None:
    limits = (512, 1024, 4096, 8192, 16384, 32768, 65536, 131072)
    variants = build("cuda:sm_90a", "dynamic_softmax")
    assert len(variants) == len(limits) + 3
    for built, limit in zip(variants, limits, strict=False):
        is_wide = limit > 4096
        assert dict(built.launch.extras)["form"] == ("held" if is_wide else "persistent")
        assert ("cluster_blocks" in dict(built.launch.extras)) == (limit > 32768)
        pieces = 16 if limit > 8192 else 8
        assert built.launch.rblock_elems == (limit // pieces if is_wide else limit)
        bounds = [a for a in built.guard if a.op is GuardOp.LE]
        assert [(a.name, a.operand) for a in bounds] == [("s1", limit)]


def test_rows_that_a_chip_cannot_hold_have_no_variant_that_holds_them() -> None:
    most = target_facts("rocm:gfx942").section(GpuFacts).max_persistent_elems
    held = [
        built.launch.rblock_elems
        for built in build("rocm:gfx942", "dynamic_softmax")
        if any(a.op is GuardOp.LE for a in built.guard)
    ]
    assert held == [512, 1024, 4096, 8192]
    assert held[-1] == most


def _normal_of(rows: int, width: int, dtype: DType) -> Kernel:
    return emitter_shapes.layer_norm_silu(dtype, rows, width)


@pytest.mark.sweep
@pytest.mark.parametrize("width", [32768, 50304, 65536])
@pytest.mark.parametrize("shape", [emitter_shapes.softmax, _normal_of])
def test_long_rows_are_read_once_and_held_without_spills(
    shape: Callable[..., Kernel], width: int
) -> None:
    kernel = shape(512, width, emitter_shapes.F16)
    built = CUDA.build(kernel, target_facts("cuda:sm_90a"))[0]
    launch = built.launch
    assert dict(launch.extras)["form"] == "held"
    assert not launch.spills
    assert launch.registers * launch.num_warps * launch.warp_size <= 65536
    text = content_of(built, "triton").decode()
    assert text.count("tl.load(in0_ptr") == 1
    # The first-level cache keeps weights, if there are any, instead of the row.
    leaves_cache = "ld.global.cg" in content_of(built, "ptx").decode()
    assert leaves_cache == (shape is _normal_of)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("shape", "width", "blocks"),
    [
        (emitter_shapes.softmax, 262144, 8),
        (_normal_of, 262144, 8),
    ],
)
def test_rows_beyond_a_multiprocessor_are_held_by_clusters_of_blocks(
    shape: Callable[..., Kernel], width: int, blocks: int
) -> None:
    kernel = shape(512, width, emitter_shapes.F16)
    built = CUDA.build(kernel, target_facts("cuda:sm_90a"))[0]
    launch, extras = built.launch, dict(built.launch.extras)
    assert extras["form"] == "held"
    assert extras["cluster_blocks"] == str(blocks)
    assert launch.grid[0].as_int() == 512 * blocks
    assert not launch.spills
    assert 2 * launch.registers * launch.num_warps * launch.warp_size <= 65536
    assert f".reqnctapercluster {blocks}" in content_of(built, "ptx").decode()
    assert content_of(built, "triton").decode().count("tl.load(in0_ptr") == 1


@pytest.mark.sweep
@pytest.mark.parametrize("width", [50304, 65536, 131072])
@pytest.mark.parametrize("shape", [emitter_shapes.softmax, _normal_of])
def test_half_of_a_long_row_is_copied_to_shared_memory(
    shape: Callable[..., Kernel], width: int
) -> None:
    kernel = shape(512, width, emitter_shapes.F16)
    target = target_facts("cuda:sm_90a")
    aligned, general = CUDA.build(kernel, target)
    launch, ptx = aligned.launch, content_of(aligned, "ptx").decode()
    row_bytes = 2 * width
    assert 0.45 * row_bytes < launch.shared_bytes < 0.7 * row_bytes
    assert not launch.spills
    programs = 2 if row_bytes <= 131072 else 1
    assert programs * launch.registers * launch.num_warps * launch.warp_size <= 65536
    assert programs * launch.shared_bytes <= 232448
    # Copies of 16 bytes, and loops: an unrolled one would load each piece once.
    assert "cp.async.cg.shared.global" in ptx
    assert ptx.count("ld.shared.v4") < len(re.findall(r"ld\.global\S*\.v4", ptx)) + 16
    assert len(re.findall(r"@%p\d+ bra", ptx)) >= 3
    # Without the assumption of alignment, rows cannot be copied so.
    assert "cp.async" not in content_of(general, "ptx").decode()


def test_split_rows_of_varying_length_are_guarded_from_below() -> None:
    kernel = emitter_shapes.dynamic_softmax(emitter_shapes.F16)
    found = {}
    for variant in CUDA.build(kernel, target_facts("cuda:sm_90a")):
        bounds = {a.op: a.operand for a in variant.guard if a.name == "s1"}
        if GuardOp.GE in bounds:
            found[bounds[GuardOp.GE]] = bounds[GuardOp.LE]
            assert "cp.async.cg" in content_of(variant, "ptx").decode()
            assert not variant.launch.spills
    assert found == {32769: 65536, 65537: 131072}


def test_split_rows_of_varying_length_compile_with_positions_of_64_bits() -> None:
    kernel, target = emitter_shapes.dynamic_softmax(emitter_shapes.F16), target_facts("cuda:sm_90a")
    plans = plan_variants(kernel, target.memory, TOOLCHAIN.uses_pointer_range)
    (plan,) = (plan for plan in plans if plan.width_limit == 65536)
    tiling = split_forms(kernel, target, replace(plan, index_bits=64))[0]
    assert tiling.index_bits == 64
    source = emit_triton(kernel, tiling, scalar_rules(target, kernel))
    options = {**TOOLCHAIN.options, "num_warps": tiling.num_warps}
    compiled = compile_triton(source, CompileTarget("cuda", 90, 32), options, plan.assumptions)
    assert "cp.async.cg" in str(compiled.stages["ptx"])


def test_a_row_that_nothing_stores_leaves_registers_for_a_second_one() -> None:
    kernel = emitter_shapes.log_sum_exp(512, 50304, emitter_shapes.F16)
    launch = CUDA.build(kernel, target_facts("cuda:sm_90a"))[0].launch
    assert dict(launch.extras)["form"] == "held"
    assert not launch.spills
    assert 2 * launch.registers * launch.num_warps * launch.warp_size <= 65536


def test_rows_beyond_a_cluster_are_looped() -> None:
    kernel = emitter_shapes.softmax(512, 524288, emitter_shapes.F16)
    built = CUDA.build(kernel, target_facts("cuda:sm_90a"))[0]
    assert dict(built.launch.extras)["form"] == "looped"


def test_rows_that_would_fill_a_multiprocessor_alone_are_held_in_pieces() -> None:
    target = target_facts("cuda:sm_90a")
    normal = CUDA.build(emitter_shapes.layer_norm_silu(emitter_shapes.F16, 512, 16384), target)[0]
    assert dict(normal.launch.extras)["form"] == "held"
    softmax = CUDA.build(emitter_shapes.softmax(512, 16384, emitter_shapes.F16), target)[0]
    assert dict(softmax.launch.extras)["form"] == "held"
    whole = CUDA.build(emitter_shapes.softmax(512, 8192, emitter_shapes.F16), target)[0]
    assert dict(whole.launch.extras)["form"] == "persistent"
    for launch in (normal.launch, softmax.launch, whole.launch):
        assert 2 * launch.registers * launch.num_warps * launch.warp_size <= 65536


def test_arguments_are_buffers_then_sizes_then_scratch() -> None:
    (*_, general) = build("cuda:sm_90a", "dynamic_softmax")
    assert general.launch.arguments == ("buffer", "buffer", "size", "size", "scratch", "scratch")
    assert str(general.launch.grid[0]) == "s0"


def test_a_note_says_that_indices_are_clamped() -> None:
    assert any("clamped" in note for note in build("cuda:sm_90a", "embedding")[0].notes)


def test_a_cubin_without_the_kernel_is_our_bug() -> None:
    cubin = content_of(build("cuda:sm_90a", "layer_norm_silu")[0], "cubin")
    with pytest.raises(InternalError, match="holds no kernel other"):
        read_cubin(cubin, "other")


def test_float8_arithmetic_is_refused_by_name() -> None:
    f8 = emitter_shapes.DType.F8E4M3FN
    kernel = emitter_shapes.scalar_op("add", (f8, f8), f8, 8)
    with pytest.raises(KernelRejectedError, match=r"add of an 8-bit float.*cuda:sm_90a"):
        CUDA.build(kernel, target_facts("cuda:sm_90a"))


def test_tools_are_found_with_their_versions() -> None:
    for backend in BACKENDS.values():
        for tool in backend.tools():
            assert tool.is_found, tool
            assert tool.version, tool
    assert CUDA.fingerprint() != ROCM.fingerprint()
    assert CUDA.fingerprint() == CUDA.fingerprint()


@pytest.mark.slow
@pytest.mark.parametrize("target", CUDA_TARGETS)
@pytest.mark.parametrize("kernel", emitter_shapes.ALL)
def test_every_kernel_makes_cubins_for_every_chip(target: str, kernel: str, tmp_path: Path) -> None:
    check_cubins(target, kernel, tmp_path)
    check_limits(target, kernel)


@pytest.mark.slow
@pytest.mark.parametrize("target", ROCM_TARGETS)
@pytest.mark.parametrize("kernel", emitter_shapes.ALL)
def test_every_kernel_makes_code_objects_for_every_chip(target: str, kernel: str) -> None:
    for built, hsaco in binaries(target, kernel):
        assert read_hsaco(hsaco, built.launch.symbol).target.endswith(target_facts(target).arch)
    check_limits(target, kernel)


@pytest.mark.parametrize(
    ("op", "coefficient"),
    [
        ("atan", -8.750608600031904122785e-1),
        ("asin", -8.750608600031904122785e-1),
        ("erfc", 2.46196981473530512524e-10),
        ("erfc", 5.64189583547755073984e-1),
    ],
)
def test_coefficients_of_f64_functions_keep_all_their_bits(op: str, coefficient: float) -> None:
    kernel = emitter_shapes.scalar_op(op, (emitter_shapes.DType.F64,), emitter_shapes.DType.F64, 64)
    built = CUDA.build(kernel, target_facts("cuda:sm_90a"))[0]
    bits = struct.pack(">d", coefficient).hex().upper()
    assert f"0d{bits}" in content_of(built, "ptx").decode()


@pytest.mark.parametrize(("width", "is_held"), [(4000, True), (5000, False)])
def test_scans_of_long_rows_are_done_in_pieces(width: int, is_held: bool) -> None:
    kernel = parse_kernel(
        f"kernel scans\nparam in in0: f32[7*{width}]\nparam out out0: f32[7*{width}]\n"
        f"for d0 in 7\nreduce r0 in {width}\n  %0: f32 = load in0[{width}*d0 + r0]\n"
        f"  %1: f32 = scan cummax %0\n  store out0[{width}*d0 + r0] = %1\n"
    )
    target = target_facts("cuda:sm_90a")
    first, second = (gpu_tiling(kernel, target, 32, level) for level in (0, 1))
    assert first is not None and first.is_persistent is is_held
    assert second is not None and not second.is_persistent
