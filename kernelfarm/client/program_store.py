"""Compiled programs of this process: equal graphs share one request and one set of kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from kernelfarm.client.captured import Captured, NotRunnableHereError
from kernelfarm.client.farm_client import FarmClient
from kernelfarm.client.found_program import FoundProgram
from kernelfarm.client.loaders.contract import LoadedKernel, Loader
from kernelfarm.client.loaders.of_device import DeviceSupport
from kernelfarm.client.program import LoadedProgram
from kernelfarm.client.variants import Variant
from kernelfarm.digest import program_key
from kernelfarm.ir.program_ir import Plan


@dataclass(frozen=True, slots=True)
class SharedProgram:
    """A plan with its kernels in memory, for every graph of the same canonical form."""

    plan: Plan
    kernels: tuple[tuple[Variant, ...], ...]

    def for_graph(self, captured: Captured, loader: Loader) -> LoadedProgram:
        """The program for one captured graph."""
        return LoadedProgram(self.plan, self.kernels, captured, loader)


class ProgramStore:
    """Programs by key; two threads that ask for one key make one request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: dict[tuple[str, bytes], Future[SharedProgram]] = {}

    def program(
        self, client: FarmClient, captured: Captured, support: DeviceSupport, is_deterministic: bool
    ) -> SharedProgram:
        """The program of a graph, from memory or from the farm.

        Raises:
            KernelfarmError: as `FarmClient.compile`; a failure is forgotten, so it may be retried.
        """
        options = (("deterministic", "1"),) if is_deterministic else ()
        key = program_key(captured.graph, support.target, options)
        return self._once(
            (client.settings.endpoint, key),
            lambda: self._compile(client, captured, support, is_deterministic),
        )

    def forget_unfinished(self) -> None:
        """For a child after a fork: the threads that would finish are not there."""
        self._lock = threading.Lock()
        self._programs = {key: made for key, made in self._programs.items() if made.done()}

    def _once(self, key: tuple[str, bytes], make: Callable[[], SharedProgram]) -> SharedProgram:
        with self._lock:
            known = self._programs.get(key)
            mine: Future[SharedProgram] | None = None
            if known is None:
                known = mine = self._programs[key] = Future()
        if mine is None:
            return known.result()
        try:
            mine.set_result(make())
        except BaseException as error:
            with self._lock:
                del self._programs[key]
            mine.set_exception(error)
        return mine.result()

    def _compile(
        self, client: FarmClient, captured: Captured, support: DeviceSupport, is_deterministic: bool
    ) -> SharedProgram:
        (found,) = client.compile(
            captured.graph, [support.target], is_deterministic=is_deterministic
        )
        return load_program(client, found, support.loader)


def load_program(client: FarmClient, found: FoundProgram, loader: Loader) -> SharedProgram:
    """The program with its binaries fetched, checked and loaded.

    Raises:
        NotRunnableHereError: an artifact is a stub.
        UnavailableError: the device refuses a binary.
    """
    artifacts = [artifact for variants in found.kernels for artifact in variants]
    stub = next((artifact for artifact in artifacts if artifact.is_stub), None)
    if stub is not None:
        raise NotRunnableHereError(f"the farm has a stub for {stub.target}: {stub.stub_reason}")
    missing = [d for a in artifacts if (d := a.binary.sha256) not in _kernels]
    binaries = client.read_blobs(missing) if missing else {}
    for artifact in artifacts:
        digest = artifact.binary.sha256
        if digest in binaries:
            _kernels.setdefault(digest, loader.load(binaries[digest], artifact.launch))
    kernels = tuple(
        tuple(Variant(a.guard, _kernels[a.binary.sha256]) for a in variants)
        for variants in found.kernels
    )
    return SharedProgram(found.plan, kernels)


_kernels: dict[bytes, LoadedKernel] = {}
"""Loaded binaries of this process by SHA-256: programs of one model share many kernels."""
