"""The backend of the vendor `riscv`: LLVM's code generator, cross-compiled on any machine."""

from __future__ import annotations

import shutil
from dataclasses import replace

from codegen_svc.backends.contract import Backend, ToolStatus
from codegen_svc.backends.llvm_libraries import LlvmBackend
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import TargetFacts
from riscv_vendor.emulator import COMPILER, EMULATOR, REMEDY


class RiscvBackend(LlvmBackend):
    """Shared libraries for RISC-V, with the size of each buffer among their launch facts.

    The emulated processor of `emulator.py` has memory of its own, so its loader copies buffers and
    must know their sizes. A size is an expression over the kernel's sizes `s0`, `s1`, ...
    """

    def __init__(self) -> None:
        super().__init__("riscv", "riscv_vendor")

    def tools(self) -> tuple[ToolStatus, ...]:
        """LLVM, the linker, and what only clients need that run kernels."""
        emulated = (_status(tool) for tool in (EMULATOR, COMPILER))
        return (*super().tools(), *emulated)

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """One variant without a guard."""
        facts = tuple(
            (f"buffer_{number}_bytes", str(param.size_elems * param.dtype.itemsize_bytes))
            for number, param in enumerate(kernel.params)
        )
        return tuple(
            replace(built, launch=replace(built.launch, extras=(*built.launch.extras, *facts)))
            for built in super().build(kernel, target)
        )


def _status(tool: str) -> ToolStatus:
    path = shutil.which(tool) or ""
    return ToolStatus(tool, path, is_found=bool(path), is_required=False, remedy=REMEDY)


BACKEND: Backend = RiscvBackend()
