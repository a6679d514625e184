"""Backends of processors that LLVM knows: each kernel becomes one shared library.

A vendor of such processors states its targets' facts and names itself; a package outside of this
repository does the same (examples/riscv_vendor).
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

from codegen_svc.backends import link_library, llvm_toolchain
from codegen_svc.backends.contract import ToolNeeds, ToolStatus
from codegen_svc.backends.llvm_user_kernel import build_llvm_user_kernel
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_toolchain import emitter_digest, triton_environment
from codegen_svc.backends.wheel_digest import wheel_digest
from codegen_svc.emitters.llvm.kernel import emit_llvm
from kernelfarm.errors import UnavailableError
from kernelfarm.ir.artifact import BuiltKernel, LaunchFacts, StageText
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import print_kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import TargetFacts

# `int32_t symbol(void *const *buffers, const int64_t *sizes, int32_t threads)`; `arguments` lists
# the contents of the two tables in order.
ABI = "kf-cpu-1"
# What of `codegen_svc.backends` shapes the output of each such vendor.
_SHARED_FILES = (
    "link_library.py",
    "llvm_libraries.py",
    "llvm_toolchain.py",
    "llvm_user_kernel.py",
)
_EMITTER = (
    "codegen_svc.emitters.llvm",
    "codegen_svc.emitters.llvm.blocks",
    "codegen_svc.emitters.llvm.math_functions",
)


class LlvmBackend:
    """Compiles loop kernels to LLVM IR, assembly, an ELF object and a shared library.

    The facts of a target must have the sections `llvm` and `processor`. `package` is the vendor's
    own Python package; its sources and files of facts belong to the fingerprint.
    """

    def __init__(self, vendor: str, package: str) -> None:
        self._vendor = vendor
        self._package = package

    @property
    def vendor(self) -> str:
        """The prefix of the targets."""
        return self._vendor

    def tools(self) -> tuple[ToolStatus, ...]:
        """LLVM and the linker."""
        return (
            _status("LLVM", llvm_toolchain.llvm_version, llvm_toolchain.LLVMLITE_REMEDY),
            _status("LLD", link_library.linker_version, link_library.LINKER_REMEDY),
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
            # Its library contains LLD, and its front end reads users' kernels.
            wheel_digest("triton", link_library.LINKER_REMEDY),
            *triton_environment(),
            emitter_digest(),
            platform.machine(),
            _sources_digest(self._package),
        )
        return hashlib.sha256("; ".join(parts).encode()).hexdigest()

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """One variant without a guard.

        Raises:
            KernelRejectedError: the kernel uses something that code for processors cannot express.
            UnavailableError: llvmlite or triton is missing.
        """
        code = llvm_toolchain.code_target(target)
        with stage("llir"):
            llir = emit_llvm(kernel, code)
        compiled = llvm_toolchain.compile_module(llir, code)
        with stage("so"):
            library = link_library.link_shared(compiled.object)
        stages = (
            _text("kernel", print_kernel(kernel)),
            _text("llir", llir),
            _text("llir_opt", compiled.llir_opt),
            _text("asm", compiled.asm),
            StageText("object", compiled.object, is_text=False),
            StageText("so", library, is_text=False),
        )
        launch = LaunchFacts(
            symbol=kernel.name,
            arguments=("buffer",) * len(kernel.params)
            + ("size",) * len(kernel.sizes)
            + ("threads",),
            extras=(("abi", ABI), *llvm_toolchain.processor_extras(target)),
        )
        return (BuiltKernel("so", stages, launch),)

    def build_user_kernel(self, kernel: UserKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """One variant without a guard.

        Raises:
            KernelRejectedError: Triton refuses the kernel, or it has no code for processors.
            UnavailableError: llvmlite or triton is missing.
        """
        return build_llvm_user_kernel(kernel, target, ABI)

    def makes_runnable_binaries(self) -> bool:
        """True: the library runs on every processor of its target."""
        return True


def _text(name: str, content: str) -> StageText:
    return StageText(name, content.encode(), is_text=True)


def _status(name: str, version: Callable[[], str], remedy: str) -> ToolStatus:
    try:
        return ToolStatus(name, version(), is_found=True, is_required=True)
    except UnavailableError:
        return ToolStatus(name, "", is_found=False, is_required=True, remedy=remedy)


@lru_cache(maxsize=8)
def _sources_digest(package: str) -> str:
    """SHA-256 over every file that shapes the output of the vendor with this package."""
    shared = resources.files("codegen_svc.backends")
    entries = [shared / name for name in _SHARED_FILES]
    for name in (*_EMITTER, package):
        entries.extend(_sources(resources.files(name)))
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(entry.name.encode() + b"\0" + entry.read_bytes())
    return digest.hexdigest()


def _sources(folder: Traversable) -> list[Traversable]:
    files = (entry for entry in folder.iterdir() if entry.name.endswith((".py", ".toml")))
    return sorted(files, key=lambda entry: entry.name)
