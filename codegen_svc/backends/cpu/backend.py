"""The CPU backend: one general variant of each kernel, as a shared library."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from importlib import resources

from codegen_svc.backends.contract import Backend, ToolNeeds, ToolStatus
from codegen_svc.backends.cpu import link, llvm_toolchain
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.wheel_digest import wheel_digest
from codegen_svc.emitters.llvm.kernel import emit_llvm
from kernelfarm.errors import UnavailableError
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import print_kernel
from kernelfarm.targets import ProcessorFacts, TargetFacts

# `int32_t symbol(void *const *buffers, const int64_t *sizes, int32_t threads)`; `arguments` lists
# the contents of the two tables in order.
ABI = "kf-cpu-1"


class CpuBackend:
    """Compiles loop kernels to LLVM IR, assembly, an ELF object and a shared library."""

    @property
    def vendor(self) -> str:
        """`cpu`."""
        return "cpu"

    def tools(self) -> tuple[ToolStatus, ...]:
        """LLVM and the linker."""
        return (
            _status("LLVM", llvm_toolchain.llvm_version, llvm_toolchain.LLVMLITE_REMEDY),
            _status("LLD", link.linker_version, link.LINKER_REMEDY),
        )

    def needs(self) -> ToolNeeds:
        """Nothing: compiler and linker are libraries in the process."""
        return ToolNeeds(starts_programs=False, takes_many_jobs=True)

    def fingerprint(self) -> str:
        """Digest over the tools' wheels, this machine's assembler, and the emitter's sources.

        Raises:
            UnavailableError: llvmlite or triton is missing.
        """
        parts = (
            wheel_digest("llvmlite", llvm_toolchain.LLVMLITE_REMEDY),
            wheel_digest("triton", link.LINKER_REMEDY),  # its library contains LLD
            platform.machine(),
            _sources_digest(),
        )
        return hashlib.sha256("; ".join(parts).encode()).hexdigest()

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """One variant without a guard.

        Raises:
            KernelRejectedError: the kernel uses something that CPU code cannot express.
            UnavailableError: llvmlite or triton is missing.
        """
        code = llvm_toolchain.code_target(target)
        with stage("llir"):
            llir = emit_llvm(kernel, code)
        compiled = llvm_toolchain.compile_module(llir, code)
        with stage("so"):
            library = link.link_shared(compiled.object)
        stages = (
            _text("kernel", print_kernel(kernel)),
            _text("llir", llir),
            _text("llir_opt", compiled.llir_opt),
            _text("asm", compiled.asm),
            StageText("object", compiled.object, is_text=False),
            StageText("so", library, is_text=False),
        )
        flags = " ".join(target.section(ProcessorFacts).flags)
        launch = LaunchFacts(
            symbol=kernel.name,
            arguments=("buffer",) * len(kernel.params)
            + ("size",) * len(kernel.sizes)
            + ("threads",),
            extras=(("abi", ABI), ("cpu_flags", flags)),
        )
        return (BuiltKernel("so", stages, launch),)

    def makes_runnable_binaries(self) -> bool:
        """True: the library runs on every processor of its target."""
        return True


def _text(name: str, content: str) -> StageText:
    return StageText(name, content.encode(), is_text=True)


def _status(name: str, version: object, remedy: str) -> ToolStatus:
    if not callable(version):
        raise TypeError(f"expected a function that gives a version, got {version!r}")
    try:
        return ToolStatus(name, version(), is_found=True, is_required=True)
    except UnavailableError:
        return ToolStatus(name, "", is_found=False, is_required=True, remedy=remedy)


@lru_cache(maxsize=1)
def _sources_digest() -> str:
    """SHA-256 over every file that shapes this backend's output."""
    digest = hashlib.sha256()
    for package in (
        "codegen_svc.emitters.llvm",
        "codegen_svc.emitters.llvm.math_functions",
        "codegen_svc.backends.cpu",
    ):
        entries = sorted(resources.files(package).iterdir(), key=lambda entry: entry.name)
        for entry in entries:
            if entry.name.endswith(".py"):
                digest.update(entry.name.encode() + b"\0" + entry.read_bytes())
    return digest.hexdigest()


BACKEND: Backend = CpuBackend()
