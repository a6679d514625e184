"""LLVM through llvmlite: parses, optimizes and assembles modules for a processor."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

from codegen_svc.backends.stage_times import stage
from codegen_svc.emitters.llvm.dots import dots_of
from codegen_svc.emitters.llvm.kernel import CodeTarget
from kernelfarm.errors import InternalError, KernelRejectedError, UnavailableError
from kernelfarm.targets import LlvmFacts, ProcessorFacts, TargetFacts

LLVMLITE_REMEDY = "pip install 'llvmlite==0.50.*'"
# Architectures whose assembler llvmlite registers when it runs on them.
_NATIVE_ASSEMBLERS = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64"}
# The shortest scalable vectors: LLVM's lengths are multiples of it.
_PIECE_BYTES = 16
_TO_ESCAPE = re.compile(r'[^ -~]|["\\]')


@dataclass(frozen=True, slots=True)
class CompiledModule:
    """One module's stages: optimized IR, assembly, and the ELF object assembled from it."""

    llir_opt: str
    asm: str
    object: bytes


@lru_cache(maxsize=1)
def binding() -> Any:
    """llvmlite's binding module with every target registered.

    Raises:
        UnavailableError: llvmlite is not installed.
    """
    try:
        import llvmlite.binding as llvm  # noqa: PLC0415 - services without a CPU queue lack it
    except ImportError as error:
        raise UnavailableError(f"llvmlite is missing: {LLVMLITE_REMEDY}") from error
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    return llvm


def llvm_version() -> str:
    """Versions of llvmlite and of the LLVM in it.

    Raises:
        UnavailableError: llvmlite is not installed.
    """
    number = ".".join(map(str, binding().llvm_version_info))
    return f"llvmlite {metadata.version('llvmlite')}, LLVM {number}"


@lru_cache(maxsize=16)
def _machine(triple: str, cpu: str, features: str) -> Any:
    llvm = binding()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise KernelRejectedError(f"LLVM does not know the target {triple!r}: {error}") from error
    return target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default"
    )


def code_target(target: TargetFacts) -> CodeTarget:
    """The target description that LLVM and the emitter need."""
    llvm = target.section(LlvmFacts)
    layout = str(_machine(llvm.triple, llvm.cpu, llvm.features).target_data)
    processor = target.section(ProcessorFacts)
    pieces = processor.vector_bytes // _PIECE_BYTES
    return CodeTarget(
        llvm.triple,
        layout,
        llvm.cpu,
        llvm.features,
        8 * processor.vector_bytes,
        target.memory,
        scales_by_powers=llvm.scales_by_powers,
        dots=dots_of(llvm),
        rounds_to_bf16=llvm.rounds_to_bf16,
        flushes_bf16=llvm.flushes_bf16,
        has_nan_maximum=llvm.has_nan_maximum,
        vscale=pieces if processor.has_scalable_vectors else None,
    )


def processor_extras(target: TargetFacts) -> tuple[tuple[str, str], ...]:
    """What a client must find in its processor before it runs a kernel of a target."""
    processor = target.section(ProcessorFacts)
    found = (("cpu_flags", " ".join(processor.flags)),)
    if not processor.has_scalable_vectors:
        return found
    return (*found, ("sve_bytes", str(processor.vector_bytes)))


def has_assembler(triple: str) -> bool:
    """True if LLVM can assemble text for the target in this process."""
    return triple.partition("-")[0] == _NATIVE_ASSEMBLERS.get(platform.machine())


def compile_module(llir: str, target: CodeTarget) -> CompiledModule:
    """Optimizes and assembles a module.

    Raises:
        InternalError: the text is no valid LLVM IR: a bug of the emitter.
    """
    llvm = binding()
    machine = _machine(target.triple, target.cpu, target.features)
    if "\0" in llir:  # LLVM reads a C string and would silently drop the rest
        raise InternalError("the LLVM emitter wrote LLVM IR with a NUL in it")
    with stage("llir_opt"):
        module = _parsed(llvm, llir)
        _optimize(llvm, machine, module)
        llir_opt = str(module)
    # Code generation changes the module that it reads, so a second run over it gives different
    # code. The object is therefore made from the assembly or, without an assembler, from the
    # printed IR.
    with stage("asm"):
        asm = machine.emit_assembly(module)
    with stage("object"):
        if has_assembler(target.triple):
            return CompiledModule(llir_opt, asm, _assemble(llvm, machine, asm, target))
        again = llvm.parse_assembly(llir_opt)
        return CompiledModule(llir_opt, asm, machine.emit_object(again))


def _parsed(llvm: Any, llir: str) -> Any:
    try:
        return llvm.parse_assembly(llir)
    except RuntimeError as error:
        raise InternalError(f"the LLVM emitter wrote invalid LLVM IR: {error}") from error


def _optimize(llvm: Any, machine: Any, module: Any) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _assemble(llvm: Any, machine: Any, asm: str, target: CodeTarget) -> bytes:
    """Assembles through a module of inline assembly: a quarter of the time of code generation."""
    text = (
        f'target datalayout = "{target.data_layout}"\n'
        f'target triple = "{target.triple}"\nmodule asm "{_escaped(asm)}"\n'
    )
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(lambda match: f"\\{ord(match[0]):02X}", text)
