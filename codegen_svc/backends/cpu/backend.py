"""The CPU backend: x86-64 and 64-bit Arm."""

from __future__ import annotations

from codegen_svc.backends.contract import Backend
from codegen_svc.backends.llvm_libraries import LlvmBackend

BACKEND: Backend = LlvmBackend("cpu", "codegen_svc.backends.cpu")
