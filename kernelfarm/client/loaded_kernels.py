"""Binaries become kernels: fetched, checked, loaded once in a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kernelfarm.client.captured import NotRunnableHereError
from kernelfarm.client.found_program import FoundProgram
from kernelfarm.client.loaders.contract import LoadedKernel, Loader
from kernelfarm.client.variants import Variant


class BlobReader(Protocol):
    """Where contents come from."""

    def read_blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Contents by SHA-256, each checked against it."""


def load_kernels(
    reader: BlobReader, found: FoundProgram, loader: Loader
) -> tuple[tuple[Variant, ...], ...]:
    """The variants of a program's kernels, in the plan's order.

    Raises:
        NotRunnableHereError: an artifact is a stub.
        UnavailableError: the device refuses a binary.
    """
    artifacts = [artifact for variants in found.kernels for artifact in variants]
    stub = next((artifact for artifact in artifacts if artifact.is_stub), None)
    if stub is not None:
        raise NotRunnableHereError(f"the farm has a stub for {stub.target}: {stub.stub_reason}")
    missing = [d for a in artifacts if (d := a.binary.sha256) not in _kernels]
    binaries = reader.read_blobs(missing) if missing else {}
    for artifact in artifacts:
        digest = artifact.binary.sha256
        if digest in binaries:
            _kernels.setdefault(digest, loader.load(binaries[digest], artifact.launch))
    return tuple(
        tuple(Variant(a.guard, _kernels[a.binary.sha256]) for a in variants)
        for variants in found.kernels
    )


def loaded_digests() -> list[bytes]:
    """SHA-256 of the binaries that are loaded here: nobody need send them."""
    return list(_kernels)


_kernels: dict[bytes, LoadedKernel] = {}
"""Loaded binaries of this process by SHA-256: programs of one model share many kernels."""
