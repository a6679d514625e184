"""Loads the kernels of programs; each binary is fetched, verified and loaded once per process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kernelfarm.client.farm.compiled_program import CompiledArtifact, CompiledProgram
from kernelfarm.client.loaders.contract import LoadedKernel, Loader, NotRunnableHereError
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.ir.artifact import LaunchFacts, scratch_bytes


class BlobReader(Protocol):
    """A source of blobs."""

    def read_blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Verified blobs by SHA-256."""


def load_kernels(
    reader: BlobReader, found: CompiledProgram, loader: Loader
) -> tuple[tuple[LoadedVariant, ...], ...]:
    """The variants of a program's kernels, in the plan's order.

    Raises:
        NotRunnableHereError: an artifact is a stub.
        UnavailableError: the device refuses a binary.
    """
    artifacts = [artifact for variants in found.kernels for artifact in variants]
    stub = next((artifact for artifact in artifacts if artifact.is_stub), None)
    if stub is not None:
        raise NotRunnableHereError(f"the farm has a stub for {stub.target}: {stub.stub_reason}")
    missing = {a.binary.sha256 for a in artifacts if _kernel_key(a, loader) not in _kernels}
    binaries = reader.read_blobs(list(missing)) if missing else {}
    for artifact in artifacts:
        key = _kernel_key(artifact, loader)
        if key not in _kernels:
            binary = binaries[artifact.binary.sha256]
            _kernels.setdefault(key, loader.load(binary, artifact.launch))
    return tuple(
        tuple(
            LoadedVariant(a.guard, _kernels[_kernel_key(a, loader)], scratch_bytes(a.launch))
            for a in variants
        )
        for variants in found.kernels
    )


def loaded_digests() -> list[bytes]:
    """The SHA-256 of the binaries loaded in this process; the farm need not send them again."""
    return list({digest for digest, _launch, _loader in _kernels})


KernelKey = tuple[bytes, LaunchFacts, Loader]
"""A binary's SHA-256, its launch facts and its loader (each GPU has its own)."""

_kernels: dict[KernelKey, LoadedKernel] = {}
"""The loaded binaries of this process; programs of one model share many kernels."""


def _kernel_key(artifact: CompiledArtifact, loader: Loader) -> KernelKey:
    return artifact.binary.sha256, artifact.launch, loader
