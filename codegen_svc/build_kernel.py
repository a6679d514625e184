"""One kernel for one target: through its backend to publishable variants and their blobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from codegen_svc.backends.contract import Backend
from kernelfarm.cache import Variant
from kernelfarm.errors import InternalError
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import TargetFacts
from kernelfarm.wire import artifact_to_proto, digests_of


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What is published: serialized artifacts in order, and the contents that they name."""

    variants: tuple[Variant, ...]
    blobs: dict[bytes, bytes]


def toolchain_of(backend: Backend) -> str:
    """How artifacts name what made them: `backend@fingerprint`.

    Raises:
        UnavailableError: a required tool is missing.
    """
    return f"{backend.vendor}@{backend.fingerprint()}"


def build_kernel(
    backend: Backend, kernel: Kernel, target: TargetFacts, key: bytes, clock: Callable[[], float]
) -> BuildResult:
    """The kernel's variants for a target, the general one last; `clock` gives seconds.

    Raises:
        KernelRejectedError: the toolchain refuses the kernel, deterministically.
        UnavailableError: a required tool is missing.
        InternalError: the backend broke its contract.
    """
    started_s = clock()
    built = backend.build(kernel, target)
    cost_ms = (clock() - started_s) * 1e3
    _check(built, kernel, target)
    toolchain = toolchain_of(backend)
    variants = []
    blobs: dict[bytes, bytes] = {}
    for variant in built:
        message, contents = artifact_to_proto(variant, key, target.name, toolchain, cost_ms)
        blobs.update(contents)
        digests = tuple(dict.fromkeys(digests_of(message)))
        variants.append(Variant(message.SerializeToString(deterministic=True), digests))
    return BuildResult(tuple(variants), blobs)


def _check(built: tuple[BuiltKernel, ...], kernel: Kernel, target: TargetFacts) -> None:
    where = f"kernel {kernel.name} for {target.name}"
    if not built:
        raise InternalError(
            f"{where}: the backend gave no variant; expected at least the general one"
        )
    if built[-1].guard:
        raise InternalError(f"{where}: the last variant has a guard; expected the general one")
    for variant in built:
        if variant.binary_stage not in {stage.name for stage in variant.stages}:
            raise InternalError(f"{where}: no stage is named {variant.binary_stage!r}")
