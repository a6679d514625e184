"""Compiles users' Triton kernels for GPUs: the variants of one kernel, and what a launch passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_assumptions import ALIGNMENT_BYTES, DIVISIBLE, Assumptions
from codegen_svc.backends.triton_early_launch import PROGRAMMATIC_LAUNCH
from codegen_svc.backends.triton_gpu import GpuToolchain, ResourceUsage
from codegen_svc.backends.triton_hints import HintedKernel, apply_hints
from codegen_svc.backends.triton_options import PINGPONG, given_options, pingpong_problem
from codegen_svc.backends.triton_toolchain import CompiledStages, CompileTarget, compile_triton
from codegen_svc.emitters.triton.source import TritonSource
from codegen_svc.emitters.triton.user_module import emit_user_module
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.artifact import (
    SCRATCH_BYTES,
    BuiltKernel,
    GuardAtom,
    GuardOp,
    GuardSubject,
    LaunchFacts,
    StageText,
)
from kernelfarm.ir.triton.check_source import check_source
from kernelfarm.ir.triton.encode import print_user_kernel
from kernelfarm.ir.triton.user_kernel import GRID_SIZES, Pointer, UserKernel
from kernelfarm.targets import GpuFacts, TargetFacts

_SMALL_BUFFER = ("tt.pointer_range", 32)
_BUFFER_LIMIT_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class _Variant:
    """Assumptions about arguments by name, and the guard that checks those about buffers."""

    assumptions: Assumptions
    guard: tuple[GuardAtom, ...]


@dataclass(frozen=True, slots=True)
class TemplateBuild:
    """A kernel whose variant for aligned buffers a template makes, and for what."""

    kernel: UserKernel
    target: TargetFacts
    toolchain: GpuToolchain


def build_with_template(
    build: TemplateBuild,
    known_options: frozenset[str],
    template: Callable[[TemplateBuild], BuiltKernel],
) -> tuple[BuiltKernel, ...]:
    """The template's variant for aligned buffers, and the general one of the kernel's source.

    If the toolchain refuses the template, the source takes its place, and a note says so.

    Raises:
        UserKernelError: the kernel is outside of the language.
        KernelRejectedError: Triton refuses the source, or it needs more than the chip has.
    """
    kernel, target, toolchain = build.kernel, build.target, build.toolchain
    check_source(kernel.source)
    try:
        own = template(build)
    except KernelRejectedError as error:
        note = f"template {kernel.template} is ignored: {error}"
        plain = HintedKernel(kernel, {}, (note,))
        return _variants_of(kernel, target, toolchain, known_options, plain)
    general = _variants(kernel, toolchain.uses_pointer_range)[-1:]
    plain = HintedKernel(kernel, {}, ())
    return own, *_variants_of(kernel, target, toolchain, known_options, plain, general)


def build_user_kernel(
    kernel: UserKernel,
    target: TargetFacts,
    toolchain: GpuToolchain,
    known_options: frozenset[str],
    known_hints: frozenset[str],
) -> tuple[BuiltKernel, ...]:
    """A variant for aligned buffers, and the general one.

    `known_options` and `known_hints` are those that the vendor has; notes name the others. If the
    kernel does not compile with its hints, it is compiled without them, and a note says so.

    Raises:
        UserKernelError: the kernel is outside of the language.
        KernelRejectedError: Triton refuses it, or it needs more than the chip has.
    """
    check_source(kernel.source)
    hinted = apply_hints(kernel, known_hints)
    plain = HintedKernel(kernel, {}, ())
    try:
        return _variants_of(kernel, target, toolchain, known_options, hinted)
    except KernelRejectedError as error:
        if hinted.kernel is kernel:
            raise
        note = f"the hints are ignored: with them, {error}"
        return _variants_of(kernel, target, toolchain, known_options, replace(plain, notes=(note,)))


def _variants_of(
    kernel: UserKernel,
    target: TargetFacts,
    toolchain: GpuToolchain,
    known_options: frozenset[str],
    hinted: HintedKernel,
    variants: tuple[_Variant, ...] = (),
) -> tuple[BuiltKernel, ...]:
    """The variants of a source: all of the kernel, unless some are given."""
    with stage("triton"):
        source = emit_user_module(hinted.kernel)
    stated = {name: value for name, value in kernel.options if name in known_options}
    options = {**toolchain.options, **stated, **given_options(hinted.options)}
    ignored = sorted({name for name, _ in kernel.options} - known_options)
    notes = tuple(f"option {name} does not exist for {target.vendor}" for name in ignored)
    return tuple(
        _built(kernel, target, toolchain, (source, options, notes + hinted.notes), variant)
        for variant in variants or _variants(kernel, toolchain.uses_pointer_range)
    )


def _variants(kernel: UserKernel, uses_pointer_range: bool) -> tuple[_Variant, ...]:
    fixed = {scalar.name: (DIVISIBLE,) for scalar in kernel.scalars if scalar.divisor > 1}
    aligned = fixed | aligned_pointers(kernel)
    guard = [*aligned_guard(kernel)]
    for number, pointer in enumerate(kernel.pointers):
        if uses_pointer_range:
            aligned[pointer.name] += (_SMALL_BUFFER,)
            limit = _BUFFER_LIMIT_BYTES // pointer.dtype.itemsize_bytes
            guard.append(_atom(GuardSubject.PARAM_EXTENT, number, GuardOp.LT, limit))
    return _Variant(aligned, tuple(guard)), _Variant(fixed, ())


def aligned_pointers(kernel: UserKernel) -> dict[str, tuple[tuple[str, int], ...]]:
    """The assumption that all buffers are aligned, by parameter."""
    return {pointer.name: (DIVISIBLE,) for pointer in kernel.pointers}


def aligned_guard(kernel: UserKernel) -> tuple[GuardAtom, ...]:
    """The guard of a variant for buffers whose addresses are multiples of 16 bytes."""
    return tuple(
        _atom(GuardSubject.PARAM_ADDRESS, number, GuardOp.DIVISIBLE, ALIGNMENT_BYTES)
        for number in range(len(kernel.pointers))
    )


def _atom(subject: GuardSubject, number: int, op: GuardOp, operand: int) -> GuardAtom:
    return GuardAtom(subject, number, op, operand)


def _built(
    kernel: UserKernel,
    target: TargetFacts,
    toolchain: GpuToolchain,
    made: tuple[TritonSource, Mapping[str, Any], tuple[str, ...]],
    variant: _Variant,
) -> BuiltKernel:
    source, options, notes = made
    gpu = target.section(GpuFacts)
    where = CompileTarget.of(gpu)
    compiled = compile_triton(source, where, options, variant.assumptions)
    usage = toolchain.usage_of(kernel.name, compiled)
    _check_fits(kernel, target, usage, compiled)
    if options.get(PINGPONG) and (problem := pingpong_problem(str(compiled.stages["ttgir"]))):
        notes = (*notes, f"hint block_pingpong has no effect: {problem}")
    if usage.spills:
        notes = (*notes, f"{usage.spills} bytes of registers per thread are spilled")
    return BuiltKernel(
        binary_stage=toolchain.binary_stage,
        stages=(
            StageText("user_kernel", print_user_kernel(kernel).encode(), True),
            StageText("triton", source.text.encode(), True),
            *compiled.stage_texts(),
        ),
        launch=_launch_facts(kernel, gpu, toolchain, usage, compiled),
        guard=variant.guard,
        notes=notes,
    )


def _check_fits(
    kernel: UserKernel, target: TargetFacts, usage: ResourceUsage, compiled: CompiledStages
) -> None:
    gpu = target.section(GpuFacts)
    if usage.shared_bytes > gpu.max_shared_bytes:
        raise KernelRejectedError(
            f"user kernel {kernel.entry} needs {usage.shared_bytes} bytes of shared memory;"
            f" {target.name} has {gpu.max_shared_bytes}: use smaller blocks or fewer stages"
        )
    if usage.registers > gpu.max_registers:
        raise KernelRejectedError(
            f"user kernel {kernel.entry} needs {usage.registers} registers per thread;"
            f" {target.name} has {gpu.max_registers}: use more warps or smaller blocks"
        )
    if compiled.facts.get("profile_scratch_size"):
        raise KernelRejectedError(
            f"user kernel {kernel.entry} needs memory for a profiler, which launches do not provide"
        )


def _launch_facts(
    kernel: UserKernel,
    gpu: GpuFacts,
    toolchain: GpuToolchain,
    usage: ResourceUsage,
    compiled: CompiledStages,
) -> LaunchFacts:
    scalars = len(kernel.scalars)
    words = ["buffer" if isinstance(p, Pointer) else "size" for p in kernel.launched]
    scratch_bytes = int(compiled.facts.get("global_scratch_size") or 0)
    facts = compiled.facts
    return LaunchFacts(
        symbol=kernel.name,
        grid=tuple(symbol(f"s{scalars + axis}") for axis in range(GRID_SIZES)),
        num_warps=int(facts["num_warps"]),
        warp_size=gpu.warp_size,
        shared_bytes=usage.shared_bytes,
        registers=usage.registers,
        spills=usage.spills,
        arguments=(*words, "buffer" if scratch_bytes else "scratch", "scratch"),
        extras=(
            ("form", "user kernel"),
            ("num_stages", str(facts["num_stages"])),
            (SCRATCH_BYTES, str(scratch_bytes)),
            *toolchain.recorded(kernel.name, compiled),
        ),
        programmatic_launch=PROGRAMMATIC_LAUNCH in facts,
    )
