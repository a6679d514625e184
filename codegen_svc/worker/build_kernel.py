"""Compiles one kernel for one target to variants that can be published, with their blobs."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from codegen_svc.backends.contract import Backend, built_variants
from codegen_svc.backends.defined_symbols import ELF_MAGIC, check_defines
from codegen_svc.backends.registry import is_in_tree
from kernelfarm.cache import UnsignedVariant
from kernelfarm.errors import InternalError
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.guards import FactAtom, FactSubject
from kernelfarm.ir.verify.any_kernel import check_kernel
from kernelfarm.service.fingerprint import service_fingerprint
from kernelfarm.signing import BlobRef
from kernelfarm.signing.tags import artifact_tag, driver_tag, toolchain_tag
from kernelfarm.targets import TargetFacts
from kernelfarm.wire import artifact_to_proto, binary_digest

if TYPE_CHECKING:  # generated code stays behind its fence: here it is only a type
    from kernelfarm.v1.artifact_pb2 import Artifact as ArtifactMessage


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result to publish: variants in order, and the contents of their blobs by digest."""

    variants: tuple[UnsignedVariant, ...]
    blobs: dict[bytes, bytes]


_toolchains: WeakKeyDictionary[Backend, str] = WeakKeyDictionary()


def toolchain_of(backend: Backend) -> str:
    """The toolchain as artifacts name it, `backend@fingerprint`; computed once in a process.

    The fingerprint covers the backend's own and the code that backends share with other services.

    Raises:
        UnavailableError: a required tool is missing.
    """
    known = _toolchains.get(backend)
    if known is None:
        parts = (backend.fingerprint(), service_fingerprint(sys.modules[__name__]))
        fingerprint = hashlib.sha256("; ".join(parts).encode()).hexdigest()
        known = _toolchains[backend] = f"{backend.vendor}@{fingerprint}"
    return known


def build_kernel(
    backend: Backend,
    kernel: AnyKernel,
    target: TargetFacts,
    key: bytes,
    clock: Callable[[], float],
) -> BuildResult:
    """The kernel's variants for a target, the general one last; `clock` gives seconds.

    Raises:
        VerificationError: the kernel breaks a rule of its grammar.
        UserKernelError: a user's kernel is outside of the language.
        KernelRejectedError: the toolchain refuses the kernel, and always will.
        UnavailableError: a required tool is missing.
        InternalError: the backend broke its contract.
    """
    check_kernel(kernel)  # the edge did too, but others can write to the cache since then
    started_s = clock()
    built = built_variants(backend, kernel, target)
    cost_ms = (clock() - started_s) * 1e3
    return checked_result(backend, kernel, target, key, built, cost_ms)


def checked_result(
    backend: Backend,
    kernel: AnyKernel,
    target: TargetFacts,
    key: bytes,
    built: tuple[BuiltKernel, ...],
    cost_ms: float,
) -> BuildResult:
    """The result to publish for variants that a backend has made.

    Raises:
        InternalError: the backend broke its contract.
    """
    _check(built, kernel, target)
    toolchain = toolchain_of(backend)
    confinement = str(getattr(backend, "level", ""))
    variants = []
    blobs: dict[bytes, bytes] = {}
    for variant in built:
        message, contents = artifact_to_proto(variant, key, target.name, toolchain, cost_ms)
        message.sandbox = confinement
        blobs.update(contents)
        variants.append(_variant(message, variant, toolchain, target))
    return BuildResult(tuple(variants), blobs)


def _variant(
    message: ArtifactMessage, built: BuiltKernel, toolchain: str, target: TargetFacts
) -> UnsignedVariant:
    """A variant to publish; the guard on its launch is also the guard of its entry."""
    named = {stage.blob.sha256: stage.blob.size_bytes for stage in message.stages}
    return UnsignedVariant(
        content=message.SerializeToString(deterministic=True),
        blobs=tuple(BlobRef(sha256, size_bytes) for sha256, size_bytes in named.items()),
        guard=tuple(
            FactAtom(FactSubject(atom.subject.value), atom.name, atom.op, atom.operand)
            for atom in built.guard
        ),
        tags=(
            toolchain_tag(toolchain),
            driver_tag(target.vendor),
            artifact_tag(binary_digest(message)),
        ),
        cost_ms=message.cost_ms,
    )


def _check(built: tuple[BuiltKernel, ...], kernel: AnyKernel, target: TargetFacts) -> None:
    where = f"kernel {kernel.name} for {target.name}"
    if not built:
        raise InternalError(
            f"{where}: the backend returned no variant; expected at least the general one"
        )
    if built[-1].guard:
        raise InternalError(f"{where}: the last variant has a guard; expected the general one")
    for variant in built:
        binaries = [s.content for s in variant.stages if s.name == variant.binary_stage]
        if len(binaries) != 1:
            raise InternalError(
                f"{where}: {len(binaries)} stages are named {variant.binary_stage!r}; expected one"
            )
        # A plug-in's binary may have another format.
        if is_in_tree(target.vendor) or binaries[0].startswith(ELF_MAGIC):
            check_defines(binaries[0], kernel.name)
