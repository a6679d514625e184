"""The loaded programs of this process: equal graphs share one request and one set of kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.caller_facts import facts_of
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.farm.wait_budget import remaining_timeout
from kernelfarm.client.loaders.contract import DeviceSupport, Loader
from kernelfarm.client.programs.loaded import LoadedProgram
from kernelfarm.client.programs.tiers import PrefetchedProgram, ProgramRequest, find_program
from kernelfarm.digest import program_key
from kernelfarm.errors import DeadlineError

StoreKey = tuple[str, str, str, bytes, Loader]
"""Endpoint, namespace, model, program key, and the device's loader (one for each GPU)."""


class ProgramStore:
    """Loaded programs; threads that need the same program share one request."""

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

        `key` is the program key, if the caller has computed it; `prefetched` is the program that
        the farm sent with the graph's trace.

        Raises:
            KernelfarmError: see `find_program`; a later call searches again.
        """
        key = key or program_key(captured.graph, support.target, options.pairs())
        facts = facts_of(captured.graph)
        request = ProgramRequest(
            captured.graph, key, support.target, options, facts, support.loader, prefetched
        )
        access.watch.add_handler(self)
        settings = access.settings
        store_key = (settings.endpoint, settings.namespace, settings.model, key, support.loader)
        found = self._single_flight(
            store_key, lambda: find_program(access, request), settings.timeout_s
        )
        known = access.watch.invalidations
        if known is not None:  # it may have been invalidated while it was not stored here yet
            self.apply_invalidations(settings.endpoint, known)
        return found

    def apply_invalidations(self, endpoint: str, invalidations: InvalidationState) -> None:
        """Drops stale programs; running calls finish, later calls do not use the program."""
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
        """Drops unfinished requests in a forked child, which lacks the threads that make them."""
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
            shared = self._programs.get(store_key)
            if shared is not None and shared.done() and shared.result().has_expired:
                shared = None
            own: Future[LoadedProgram] | None = None
            if shared is None:
                shared = own = self._programs[store_key] = Future()
        if own is None:
            if not wait([shared], remaining_timeout(timeout_s)).done:
                raise DeadlineError(
                    f"program {store_key[3].hex()[:16]}: another thread requested it, and has no"
                    " result yet; retry later"
                )
            found = shared.result()
            counters.count("memory.hits")
            return found
        try:
            own.set_result(make())
        except BaseException as error:
            with self._lock:
                del self._programs[store_key]
            own.set_exception(error)
        return own.result()
