"""The Ascend backend: Triton source to Triton IR, Linalg, and an object or a stub."""

from __future__ import annotations

from codegen_svc.backends.ascend.adapter import (
    ADAPTER_VERSION,
    file_digest,
    find_adapter,
    require_adapter,
)
from codegen_svc.backends.ascend.adapter import REMEDY as ADAPTER_REMEDY
from codegen_svc.backends.ascend.bishengir import REMEDY as BISHENGIR_REMEDY
from codegen_svc.backends.ascend.bishengir import TOOL, find_bishengir
from codegen_svc.backends.ascend.loop_kernel import build_loop_kernel
from codegen_svc.backends.ascend.user_kernel import build_user_kernel
from codegen_svc.backends.contract import Backend, ToolNeeds, ToolStatus
from codegen_svc.backends.triton_assumptions import plan_index_variants
from codegen_svc.backends.triton_toolchain import backend_fingerprint, triton_status
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import TargetFacts


class AscendBackend:
    """Huawei's code generator; on a machine without CANN it makes stubs."""

    vendor = "ascend"

    def tools(self) -> tuple[ToolStatus, ...]:
        """Triton, Triton-Ascend's adapter, and CANN's compiler, which may be absent."""
        adapter, compiler = find_adapter(), find_bishengir()
        version = ADAPTER_VERSION if adapter else ""
        remedy = "" if adapter else ADAPTER_REMEDY
        last = "" if compiler else BISHENGIR_REMEDY
        return (
            triton_status(),
            ToolStatus("triton-adapter-opt", version, adapter is not None, True, remedy),
            ToolStatus(TOOL, str(compiler or ""), compiler is not None, False, last),
        )

    def needs(self) -> ToolNeeds:
        """The adapter, and CANN's folder, where the compiler finds its other programs."""
        adapter, compiler = find_adapter(), find_bishengir()
        folders = [adapter.parent] if adapter else []
        if compiler:
            folders += [compiler.parent, *compiler.resolve().parents[:3]]
        return ToolNeeds(readable=tuple(folders))

    def fingerprint(self) -> str:
        """Digest over Triton's wheel, the adapter, our code, and the compiler of the last step."""
        compiler = find_bishengir()
        last = file_digest(compiler) if compiler else "stub"
        return backend_fingerprint(__file__, file_digest(require_adapter()), last)

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The general variant; if sizes vary, one with 32-bit positions before it."""
        _check_name(kernel.name, target)
        return tuple(
            build_loop_kernel(kernel, target, variant) for variant in plan_index_variants(kernel)
        )

    def build_user_kernel(self, kernel: UserKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The only variant; kernels of users may need cube cores, too."""
        _check_name(kernel.name, target)
        return build_user_kernel(kernel, target)

    def makes_runnable_binaries(self) -> bool:
        """True where CANN's compiler is installed."""
        return find_bishengir() is not None


def _check_name(name: str, target: TargetFacts) -> None:
    limit = target.max_kernel_name_chars
    if limit is not None and len(name) > limit:
        raise KernelRejectedError(
            f"kernel name {name!r} has {len(name)} characters; {target.name} takes at most {limit}"
        )


BACKEND: Backend = AscendBackend()
