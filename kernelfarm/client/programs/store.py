"""Compiled programs of this process: equal graphs share one request and one set of kernels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import Captured
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.caller_facts import facts_of
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import FoundProgram
from kernelfarm.client.farm.invalidation_state import KnownEpochs
from kernelfarm.client.farm.wait_budget import within_time
from kernelfarm.client.loaders.by_device import DeviceSupport
from kernelfarm.client.loaders.contract import Loader
from kernelfarm.client.loaders.variants import Variant
from kernelfarm.client.programs.kernels import BlobReader, load_kernels
from kernelfarm.client.programs.tiers import Prefetched, Request, find_program
from kernelfarm.client.runtime.program import LoadedProgram
from kernelfarm.digest import program_key
from kernelfarm.errors import DeadlineError
from kernelfarm.ir.program_ir import Plan
from kernelfarm.signing import Manifest


@dataclass(slots=True)
class Validity:
    """Whether a program may be used for further calls; what was invalidated is not valid again."""

    is_valid: bool = True


@dataclass(frozen=True, slots=True)
class SharedProgram:
    """A plan with its kernels in memory, for every graph of the same canonical form.

    `tags` are the caller's own; `known` is what was heard of invalidations before it was found.
    """

    plan: Plan
    kernels: tuple[tuple[Variant, ...], ...]
    manifest: Manifest
    tags: tuple[str, ...] = ()
    known: KnownEpochs | None = None
    validity: Validity = field(default_factory=Validity, compare=False)

    def for_graph(self, captured: Captured, loader: Loader) -> LoadedProgram:
        """The program for one captured graph."""
        return LoadedProgram(self.plan, self.kernels, captured, loader)

    def is_stale(self, known: KnownEpochs) -> bool:
        """True if it was invalidated, or may have been while nobody listened."""
        if known.is_stale(self.manifest, self.tags):
            return True
        heard_all = self.known is not None and (
            (self.known.incarnation, self.known.base) == (known.incarnation, known.base)
        )
        is_newer = (
            self.manifest.incarnation == known.incarnation and self.manifest.epoch >= known.base
        )
        return not (heard_all or is_newer)


Place = tuple[str, str, str, bytes, Loader]
"""Endpoint, namespace, model, program key, and the loader of the device: each GPU has its own."""


class ProgramStore:
    """Programs by place; two threads that ask for one make one request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: dict[Place, Future[SharedProgram]] = {}

    def program(
        self,
        access: FarmAccess,
        captured: Captured,
        support: DeviceSupport,
        options: CompileOptions,
        key: bytes | None = None,
        prefetched: Prefetched | None = None,
    ) -> SharedProgram:
        """The program of a graph: from memory, from disk, or from the farm.

        `key` is the program's, where the caller has it; `prefetched` is what the farm sent of it
        already.

        Raises:
            KernelfarmError: as `find_program`; a failure is forgotten, so it may be retried.
        """
        key = key or program_key(captured.graph, support.target, options.pairs())
        facts = facts_of(captured.graph)
        request = Request(
            captured.graph, key, support.target, options, facts, support.loader, prefetched
        )
        access.watch.tell(self)
        settings = access.settings
        place = (settings.endpoint, settings.namespace, settings.model, key, support.loader)
        found = self._once(place, lambda: _found(access, request), settings.timeout_s)
        known = access.watch.known
        if known is not None:  # it may have been told of while the program was not here yet
            self.obey(settings.endpoint, known)
        return found

    def obey(self, endpoint: str, known: KnownEpochs) -> None:
        """Forgets what was invalidated; calls that run finish, the next ones do without it."""
        with self._lock:
            stale = [
                (place, program)
                for place, program in self._loaded()
                if place[0] == endpoint and program.is_stale(known)
            ]
            for place, program in stale:
                program.validity.is_valid = False
                del self._programs[place]
        counters.count("memory.stale", len(stale))

    def forget_unfinished(self) -> None:
        """For a child after a fork: the threads that would finish are not there."""
        self._lock = threading.Lock()
        self._programs = {key: made for key, made in self._programs.items() if made.done()}

    def _loaded(self) -> list[tuple[Place, SharedProgram]]:
        return [
            (place, made.result())
            for place, made in self._programs.items()
            if made.done() and made.exception() is None
        ]

    def _once(
        self, place: Place, make: Callable[[], SharedProgram], timeout_s: float
    ) -> SharedProgram:
        with self._lock:
            known = self._programs.get(place)
            if known is not None and known.done() and _has_ended(known.result()):
                known = None
            mine: Future[SharedProgram] | None = None
            if known is None:
                known = mine = self._programs[place] = Future()
        if mine is None:
            if not wait([known], within_time(timeout_s)).done:
                raise DeadlineError(
                    f"program {place[3].hex()[:16]}: another thread asks for it and has nothing yet"
                )
            found = known.result()
            counters.count("memory.hits")
            return found
        try:
            mine.set_result(make())
        except BaseException as error:
            with self._lock:
                del self._programs[place]
            mine.set_exception(error)
        return mine.result()


def _found(access: FarmAccess, request: Request) -> SharedProgram:
    tier = find_program(access, request)
    return SharedProgram(
        tier.found.plan, tier.kernels, tier.found.manifest, access.tags, tier.known
    )


def _has_ended(program: SharedProgram) -> bool:
    return program.manifest.not_after_s < time.time()


def load_program(reader: BlobReader, found: FoundProgram, loader: Loader) -> SharedProgram:
    """A program that the farm answered with, its binaries fetched, checked and loaded.

    Raises:
        NotRunnableHereError: an artifact is a stub.
        UnavailableError: the device refuses a binary.
    """
    return SharedProgram(found.plan, load_kernels(reader, found, loader), found.manifest)
