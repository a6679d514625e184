"""Template kernels as a code generator builds them, with the checks of a worker."""

from __future__ import annotations

from codegen_svc.backends.contract import built_variants
from codegen_svc.backends.registry import find_backend
from codegen_svc.worker.build_kernel import checked_result
from kernelfarm.digest import kernel_key
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import target_facts

HOPPER = "cuda:sm_90a"


def built(kernel: UserKernel, target: str = HOPPER) -> tuple[BuiltKernel, ...]:
    """The variants of a kernel."""
    check_user_kernel(kernel)
    facts = target_facts(target)
    backend = find_backend(facts.vendor)
    variants = built_variants(backend, kernel, facts)
    checked_result(backend, kernel, facts, kernel_key(kernel, target), variants, 0.0)
    return variants


def stage(variant: BuiltKernel, name: str) -> str:
    """The text of a stage."""
    (found,) = (s.content.decode() for s in variant.stages if s.name == name)
    return found
