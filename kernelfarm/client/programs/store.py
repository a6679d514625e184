"""Compiled programs of this process: equal graphs share one request and one set of kernels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.caller_facts import facts_of
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.farm.wait_budget import remaining_timeout
from kernelfarm.client.loaders.by_device import DeviceSupport
from kernelfarm.client.loaders.contract import Loader
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.programs.kernels import BlobReader, load_kernels
from kernelfarm.client.programs.tiers import PrefetchedProgram, ProgramRequest, find_program
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.digest import program_key
from kernelfarm.errors import DeadlineError
from kernelfarm.ir.program_ir import Plan
from kernelfarm.signing import Manifest


@dataclass(slots=True)
class Validity:
    """Whether a program may be used for further calls; what was invalidated is not valid again."""

    is_valid: bool = True


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A plan with its kernels in memory, for every graph of the same canonical form.

    `tags` are the caller's own; `known` is what was heard of invalidations before it was found.
    """

    plan: Plan
    kernels: tuple[tuple[LoadedVariant, ...], ...]
    manifest: Manifest
    tags: tuple[str, ...] = ()
    invalidations: InvalidationState | None = None
    validity: Validity = field(default_factory=Validity, compare=False)

    def for_graph(self, captured: CapturedGraph, loader: Loader) -> BoundProgram:
        """The program for one captured graph."""
        return BoundProgram(self.plan, self.kernels, captured, loader)

    def is_stale(self, invalidations: InvalidationState) -> bool:
        """True if it was invalidated, or may have been while nobody listened."""
        if invalidations.is_stale(self.manifest, self.tags):
            return True
        saw_all = self.invalidations is not None and (
            (self.invalidations.incarnation, self.invalidations.base)
            == (invalidations.incarnation, invalidations.base)
        )
        is_newer = (
            self.manifest.incarnation == invalidations.incarnation
            and self.manifest.epoch >= invalidations.base
        )
        return not (saw_all or is_newer)


StoreKey = tuple[str, str, str, bytes, Loader]
"""Endpoint, namespace, model, program key, and the loader of the device: each GPU has its own."""


class ProgramStore:
    """Programs by place; two threads that ask for one make one request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: dict[StoreKey, Future[LoadedProgram]] = {}

    def program(
        self,
        access: FarmAccess,
        captured: CapturedGraph,
        support: DeviceSupport,
        options: CompileOptions,
        key: bytes | None = None,
        prefetched: PrefetchedProgram | None = None,
    ) -> LoadedProgram:
        """The program of a graph: from memory, from disk, or from the farm.

        `key` is the program's, where the caller has it; `prefetched` is what the farm sent of it
        already.

        Raises:
            KernelfarmError: as `find_program`; a failure is forgotten, so it may be retried.
        """
        key = key or program_key(captured.graph, support.target, options.pairs())
        facts = facts_of(captured.graph)
        request = ProgramRequest(
            captured.graph, key, support.target, options, facts, support.loader, prefetched
        )
        access.watch.add_handler(self)
        settings = access.settings
        store_key = (settings.endpoint, settings.namespace, settings.model, key, support.loader)
        found = self._single_flight(store_key, lambda: _found(access, request), settings.timeout_s)
        invalidations = access.watch.invalidations
        if invalidations is not None:  # it may have been told of while the program was not here yet
            self.apply_invalidations(settings.endpoint, invalidations)
        return found

    def apply_invalidations(self, endpoint: str, invalidations: InvalidationState) -> None:
        """Forgets what was invalidated; calls that run finish, the next ones do without it."""
        with self._lock:
            stale = [
                (store_key, program)
                for store_key, program in self._loaded()
                if store_key[0] == endpoint and program.is_stale(invalidations)
            ]
            for store_key, program in stale:
                program.validity.is_valid = False
                del self._programs[store_key]
        counters.count("memory.stale", len(stale))

    def drop_unfinished(self) -> None:
        """For a child after a fork: the threads that would finish are not there."""
        self._lock = threading.Lock()
        self._programs = {key: made for key, made in self._programs.items() if made.done()}

    def _loaded(self) -> list[tuple[StoreKey, LoadedProgram]]:
        return [
            (store_key, made.result())
            for store_key, made in self._programs.items()
            if made.done() and made.exception() is None
        ]

    def _single_flight(
        self, store_key: StoreKey, make: Callable[[], LoadedProgram], timeout_s: float
    ) -> LoadedProgram:
        with self._lock:
            known = self._programs.get(store_key)
            if known is not None and known.done() and _has_expired(known.result()):
                known = None
            mine: Future[LoadedProgram] | None = None
            if known is None:
                known = mine = self._programs[store_key] = Future()
        if mine is None:
            if not wait([known], remaining_timeout(timeout_s)).done:
                raise DeadlineError(
                    f"program {store_key[3].hex()[:16]}: another thread asks for it and has nothing"
                    " yet"
                )
            found = known.result()
            counters.count("memory.hits")
            return found
        try:
            mine.set_result(make())
        except BaseException as error:
            with self._lock:
                del self._programs[store_key]
            mine.set_exception(error)
        return mine.result()


def _found(access: FarmAccess, request: ProgramRequest) -> LoadedProgram:
    tier = find_program(access, request)
    return LoadedProgram(
        tier.found.plan, tier.kernels, tier.found.manifest, access.tags, tier.invalidations
    )


def _has_expired(program: LoadedProgram) -> bool:
    return program.manifest.not_after_s < time.time()


def load_program(reader: BlobReader, found: CompiledProgram, loader: Loader) -> LoadedProgram:
    """A program that the farm answered with, its binaries fetched, checked and loaded.

    Raises:
        NotRunnableHereError: an artifact is a stub.
        UnavailableError: the device refuses a binary.
    """
    return LoadedProgram(found.plan, load_kernels(reader, found, loader), found.manifest)
