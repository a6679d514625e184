"""The GPU backends' common part: tries tilings until the toolchain's report fits the chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from codegen_svc.backends.kernel_hints import hint_notes, hinted_options, hinted_tiling
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_assumptions import VariantPlan, plan_variants
from codegen_svc.backends.triton_called_math import called_library
from codegen_svc.backends.triton_early_launch import PROGRAMMATIC_LAUNCH
from codegen_svc.backends.triton_matrix_use import matrix_use
from codegen_svc.backends.triton_split_rows import split_forms, with_least_width
from codegen_svc.backends.triton_tensor_map import tensor_maps
from codegen_svc.backends.triton_toolchain import CompiledStages, CompileTarget, compile_triton
from codegen_svc.cost_estimate import calls_math
from codegen_svc.emitters.triton.product_tiling import product_tiling
from codegen_svc.emitters.triton.scalar import ScalarRules
from codegen_svc.emitters.triton.source import TritonSource, emit_triton
from codegen_svc.emitters.triton.split_tiling import split_registers
from codegen_svc.emitters.triton.streams import streamed_params
from codegen_svc.emitters.triton.tiling import (
    Tiling,
    fills_multiprocessor,
    gpu_tiling,
    holds_rows,
    program_count,
    sorts_rows,
)
from codegen_svc.precision.hidden_errors import hides_division_errors
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText
from kernelfarm.ir.contractions import find_contraction
from kernelfarm.ir.loop_ir import Compute, Kernel
from kernelfarm.ir.text import print_kernel
from kernelfarm.targets import GpuFacts, TargetFacts, TritonFacts, vendor_facts

_MAX_TILINGS = 8
_SHORT_FLOATS = (DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """The resources that a binary needs, as its toolchain reports them.

    Units: `spills` in bytes per thread.
    """

    registers: int
    spills: int
    shared_bytes: int


def _nothing_more(_symbol: str, _compiled: CompiledStages) -> tuple[tuple[str, str], ...]:
    return ()


@dataclass(frozen=True, slots=True)
class GpuToolchain:
    """What differs between vendors: the stage of the binary, options, and how to read its needs.

    `recorded` gives launch facts about the compilation of a symbol beyond those of all vendors.
    """

    binary_stage: str
    uses_pointer_range: bool
    options: Mapping[str, Any]
    usage_of: Callable[[str, CompiledStages], ResourceUsage]
    recorded: Callable[[str, CompiledStages], tuple[tuple[str, str], ...]] = _nothing_more


@dataclass(frozen=True, slots=True)
class _Attempt:
    kernel: Kernel
    source: TritonSource
    tiling: Tiling
    compiled: CompiledStages
    usage: ResourceUsage


def build_gpu_kernel(
    kernel: Kernel, target: TargetFacts, toolchain: GpuToolchain
) -> tuple[BuiltKernel, ...]:
    """The kernel's variants, most specific first, the general one last.

    If it does not compile with its hints, it is compiled without them, and a note says so.

    Raises:
        KernelRejectedError: the target cannot express the kernel, or the kernel needs more than the
            chip has at every tiling.
    """
    try:
        return _variants_of(kernel, target, toolchain)
    except KernelRejectedError as error:
        if not kernel.hints:
            raise
        note = f"the hints are ignored: with them, {error}"
        plain = _variants_of(replace(kernel, hints=()), target, toolchain)
        return tuple(replace(variant, notes=(*variant.notes, note)) for variant in plain)


def build_with_tiling(
    kernel: Kernel, target: TargetFacts, toolchain: GpuToolchain, tiling: Tiling
) -> BuiltKernel:
    """The kernel's most specific variant with a given tiling, for searches of the best one.

    Raises:
        KernelRejectedError: the target cannot express the kernel, or has not what the tiling needs.
    """
    planned = plan_variants(kernel, target.memory, toolchain.uses_pointer_range)
    variant = next(variant for variant in planned if variant.form is None)
    attempt = _compile(kernel, target, toolchain, variant, tiling)
    if not _fits(attempt.usage, target):
        raise KernelRejectedError(f"kernel {kernel.name} needs {attempt.usage} with {tiling}")
    return _built(kernel, target, toolchain, variant, attempt)


def _variants_of(
    kernel: Kernel, target: TargetFacts, toolchain: GpuToolchain
) -> tuple[BuiltKernel, ...]:
    variants = plan_variants(kernel, target.memory, toolchain.uses_pointer_range)
    built = (_build_variant(kernel, target, toolchain, variant) for variant in variants)
    return tuple(variant for variant in built if variant is not None)


def adds_rounded_products(kernel: Kernel) -> bool:
    """True if a product is rounded to 16 bits and then added.

    LLVM computes both operations in 16 bits, and would fuse them to one that rounds once.
    """
    additions = (v for v in kernel.body if isinstance(v, Compute) and v.op in ("add", "sub"))
    return any(_is_rounded_product(kernel, n) for v in additions for n in v.operands)


def _is_rounded_product(kernel: Kernel, number: int) -> bool:
    is_rounded = False
    while isinstance(value := kernel.body[number], Compute) and value.op in ("convert", "neg"):
        is_rounded |= value.dtype in _SHORT_FLOATS
        (number,) = value.operands
    return is_rounded and isinstance(value, Compute) and value.op == "mul"


def scalar_rules(target: TargetFacts, kernel: Kernel) -> ScalarRules:
    """The rules of scalar code that follow from a chip's facts and a kernel's results."""
    facts = target.section(TritonFacts)
    return ScalarRules(
        target=target.name,
        has_f64=facts.has_f64,
        is_division_exact=facts.has_exact_division and not hides_division_errors(kernel),
        takes_lone_pointers=facts.takes_lone_pointers,
        takes_repeated_pointers=facts.takes_repeated_pointers,
        counts_to_sort=not facts.takes_many_axes,
        takes_narrow_functions=target.gpu is not None,
        takes_eviction_policies=target.gpu is not None,
        takes_assembly=target.gpu is not None and target.gpu.takes_ptx,
        turns_factors=facts.turns_factors,
        streamed=streamed_params(kernel, target.memory),
        widens_float8=target.gpu is not None and target.gpu.widens_float8,
    )


def _build_variant(
    kernel: Kernel, target: TargetFacts, toolchain: GpuToolchain, variant: VariantPlan
) -> BuiltKernel | None:
    """One variant; None if it assumes short rows, and the chip cannot hold them whole.

    Variants without this assumption read such rows in a loop.
    """
    holds_rows = variant.width_limit is not None
    if calls_math(kernel, vendor_facts(target.vendor).compile_cost):
        if holds_rows:
            return None
        called = _with_calls(kernel, target, toolchain, variant)
        if called is not None:
            return _built(kernel, target, toolchain, variant, called)
    found = _best_tiling(kernel, target, toolchain, variant)
    if holds_rows:
        is_good = found is not None and _is_good(kernel, target, found)
        return _built(kernel, target, toolchain, variant, found) if found and is_good else None
    if found is None:
        gpu = target.section(GpuFacts)
        raise KernelRejectedError(
            f"kernel {kernel.name} needs more than {target.name} has at every tiling:"
            f" {gpu.max_shared_bytes} bytes of shared memory,"
            f" {gpu.max_registers} registers per thread"
        )
    return _built(kernel, target, toolchain, variant, found)


def _best_tiling(
    kernel: Kernel, target: TargetFacts, toolchain: GpuToolchain, variant: VariantPlan
) -> _Attempt | None:
    """Shrinks the tile until nothing spills and two programs fit a multiprocessor.

    If no tile achieves that, the first of those that spill least.
    """
    best: _Attempt | None = None
    for level in range(_MAX_TILINGS):
        tiling = _tiling(kernel, target, variant, level)
        if tiling is None or (variant.width_limit is not None and not holds_rows(tiling)):
            break
        attempt = _compile(kernel, target, toolchain, variant, tiling)
        if not _fits(attempt.usage, target):
            continue
        if _is_good(kernel, target, attempt):
            return attempt
        if best is None or attempt.usage.spills < best.usage.spills:
            best = attempt
    return best


def _tiling(kernel: Kernel, target: TargetFacts, variant: VariantPlan, level: int) -> Tiling | None:
    """The tiling that is `level` steps smaller than the first one; None if there is none."""
    if variant.form is not None:
        tiling = variant.form.tiling(target.section(GpuFacts), variant.index_bits, level)
        return None if tiling is None else hinted_tiling(tiling, kernel)
    splits = split_forms(kernel, target, variant)
    if level < len(splits):
        return splits[level]
    level -= len(splits)
    product, is_aligned = find_contraction(kernel), bool(variant.guard)
    tiling = (
        gpu_tiling(
            kernel,
            target,
            variant.index_bits,
            level,
            variant.width_limit,
            even_sizes=variant.even_sizes(kernel),
        )
        if product is None
        else product_tiling(
            kernel, product, target, variant.index_bits, level, is_aligned=is_aligned
        )
    )
    if tiling is None:
        return None
    tiling = replace(tiling, reads_words=is_aligned, has_even_points=variant.has_even_points)
    return hinted_tiling(tiling, kernel)


def _is_good(kernel: Kernel, target: TargetFacts, attempt: _Attempt) -> bool:
    """True if nothing spills, and two programs fit a multiprocessor or one is meant to fill it."""
    tiling = attempt.tiling
    fills = fills_multiprocessor(tiling, target.section(GpuFacts))
    is_meant = sorts_rows(kernel) or fills or tiling.kblock > 0
    return not attempt.usage.spills and (is_meant or not _is_alone(attempt, target))


def _with_calls(
    kernel: Kernel, target: TargetFacts, toolchain: GpuToolchain, variant: VariantPlan
) -> _Attempt | None:
    """The first block of at most one element for each thread that fits the chip; None if none does.

    Registers that calls save on the stack are no reason to try a smaller block.
    """
    warp_size = target.section(GpuFacts).warp_size
    for level in range(_MAX_TILINGS):
        tiling = _tiling(kernel, target, variant, level)
        if tiling is None:
            return None
        elements = tiling.xblock * max(tiling.rblock, 1)
        if elements > tiling.num_warps * warp_size and level < _MAX_TILINGS - 1:
            continue
        attempt = _compile(kernel, target, toolchain, variant, tiling, library_of=called_library)
        if _fits(attempt.usage, target):
            return attempt
    return None


def _compile(
    kernel: Kernel,
    target: TargetFacts,
    toolchain: GpuToolchain,
    variant: VariantPlan,
    tiling: Tiling,
    *,
    library_of: Callable[[str], str] | None = None,
) -> _Attempt:
    emitted = variant.form.kernel if variant.form is not None else kernel
    with stage("triton"):
        source = emit_triton(emitted, tiling, scalar_rules(target, emitted))
    gpu = target.section(GpuFacts)
    where = CompileTarget.of(gpu)
    options = {**toolchain.options, "num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
    if tiling.blocks > 1:
        options["num_ctas"] = tiling.blocks
    if tiling.shared_pieces:
        options["maxnreg"] = split_registers(gpu)
    options |= hinted_options(kernel, tiling, gpu)
    if adds_rounded_products(kernel):
        options["enable_fp_fusion"] = False
    compiled = compile_triton(source, where, options, variant.assumptions, library_of=library_of)
    if compiled.facts.get("global_scratch_size") or compiled.facts.get("profile_scratch_size"):
        raise KernelRejectedError(
            f"kernel {kernel.name} needs scratch memory, which launches do not provide"
        )
    return _Attempt(emitted, source, tiling, compiled, toolchain.usage_of(kernel.name, compiled))


def _fits(usage: ResourceUsage, target: TargetFacts) -> bool:
    gpu = target.section(GpuFacts)
    return usage.registers <= gpu.max_registers and usage.shared_bytes <= gpu.max_shared_bytes


def _is_alone(attempt: _Attempt, target: TargetFacts) -> bool:
    """True if one program takes most of the registers, so that no second one hides its latency.

    On an H200, a LayerNorm over rows of 16384 ran at 2.1 TB/s with one such program per
    multiprocessor, and at 3.7 TB/s as a loop.
    """
    gpu = target.section(GpuFacts)
    registers = gpu.registers_per_multiprocessor
    threads = attempt.tiling.num_warps * gpu.warp_size
    return registers is not None and 2 * attempt.usage.registers * threads > registers


def _built(
    kernel: Kernel,
    target: TargetFacts,
    toolchain: GpuToolchain,
    variant: VariantPlan,
    attempt: _Attempt,
) -> BuiltKernel:
    gpu, made = target.section(GpuFacts), attempt.compiled.stages
    notes = [*attempt.source.notes, *hint_notes(kernel, attempt.tiling, gpu, made)]
    if attempt.usage.spills:
        notes.append(
            f"{attempt.usage.spills} bytes of registers per thread are spilled at every tiling"
        )
    stages = (
        StageText("kernel", print_kernel(kernel).encode(), True),
        StageText("triton", attempt.source.text.encode(), True),
        *attempt.compiled.stage_texts(),
    )
    return BuiltKernel(
        binary_stage=toolchain.binary_stage,
        stages=stages,
        launch=_launch_facts(kernel, target, toolchain, attempt),
        guard=with_least_width(kernel, variant, attempt.tiling).guard,
        notes=tuple(notes),
    )


def _launch_facts(
    kernel: Kernel, target: TargetFacts, toolchain: GpuToolchain, attempt: _Attempt
) -> LaunchFacts:
    tiling = attempt.tiling
    buffers = ("buffer",) * len(kernel.params)
    sizes = ("size",) * len(kernel.sizes)
    maps = tensor_maps(kernel, attempt.source.maps, attempt.compiled.facts)
    map_words = (word for made in maps for word in made.arguments())
    facts = LaunchFacts(
        symbol=kernel.name,
        grid=(program_count(attempt.kernel, tiling) * tiling.blocks,),
        num_warps=int(attempt.compiled.facts.get("num_warps", tiling.num_warps)),
        warp_size=target.section(GpuFacts).warp_size,
        shared_bytes=attempt.usage.shared_bytes,
        registers=attempt.usage.registers,
        spills=attempt.usage.spills,
        xblock_elems=tiling.xblock,
        rblock_elems=tiling.rblock,
        arguments=(*buffers, *sizes, *map_words, "scratch", "scratch"),
        tensor_maps=maps,
        programmatic_launch=PROGRAMMATIC_LAUNCH in attempt.compiled.facts,
    )
    extras = (
        ("form", _form(kernel, tiling)),
        ("index_bits", str(tiling.index_bits)),
        ("num_stages", str(tiling.num_stages)),
        *(_product_extras(tiling, attempt.compiled) if tiling.kblock else ()),
        *([("cluster_blocks", str(tiling.blocks))] if tiling.blocks > 1 else []),
        *toolchain.recorded(kernel.name, attempt.compiled),
    )
    return replace(facts, extras=extras)


def _product_extras(tiling: Tiling, compiled: CompiledStages) -> tuple[tuple[str, str], ...]:
    used = ", ".join(matrix_use(str(compiled.stages["ttgir"])))
    return (
        ("kblock_elems", str(tiling.kblock)),
        ("matrix_instructions", used or "none"),
        ("factors_by", "tensor maps" if tiling.has_maps else "pointers"),
    )


def _form(kernel: Kernel, tiling: Tiling) -> str:
    if tiling.kblock:
        return "product"
    if kernel.reduction:
        if tiling.pieces:
            return "held"
        return "persistent" if tiling.is_persistent else "looped"
    return "tile" if tiling.is_tile else "pointwise"
