"""The function that torch calls for a graph: runs its program while that is valid, else eager.

The program may arrive after the first call (mode `swap`), and may be invalidated at any time. Each
call reads the current program once and runs it to its end, so no call is lost, repeated or split
between two programs.

    mode      before the first program     after an invalidation
    wait      torch.compile waits          the next call waits for a new program
    swap      calls run eager; a thread    calls run eager; a thread fetches a new program
              fetches the program
    strict    torch.compile waits          the next call waits for a new program

If the farm has no new program, `strict` raises. In the other modes calls run eager with one
warning, and a thread asks the farm again every `PAUSE_AFTER_FAILURE_S` seconds.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kernelfarm import spans
from kernelfarm.client import counters
from kernelfarm.client.farm.access import PAUSE_AFTER_FAILURE_S
from kernelfarm.client.process.exit import run_in_background
from kernelfarm.client.programs.cuda_graphs import CudaGraphs
from kernelfarm.client.programs.eager import warn_eager
from kernelfarm.client.pytorch.private.tracing import mark_boxed
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import CallerError, KernelfarmError, NotFoundError

BoxedFunction = Callable[[list[Any]], Sequence[Any]]


class GraphRunner:
    """Runs one graph: `eager` runs the captured graph, `find` returns its program from a tier.

    With `cuda_graphs`, these run the programs; calls that run eager are not recorded.
    """

    def __init__(
        self,
        eager: BoxedFunction,
        find: Callable[[], PlanRunner],
        settings: ClientSettings,
        cuda_graphs: CudaGraphs | None = None,
    ) -> None:
        self._cuda_graphs = cuda_graphs
        self._eager = eager
        self._find = find
        self._settings = settings
        self._current: PlanRunner | None = None
        self._lock = threading.Lock()
        self._fetching: threading.Thread | None = None
        self._retry_after_s = 0.0
        self._error: KernelfarmError | None = None
        self._unreported: KernelfarmError | None = None
        _all.add(self)

    def fetch(self) -> None:
        """Finds the program in the calling thread.

        Raises:
            KernelfarmError: no tier has it.
        """
        self._current = self._find()

    def replace(self, program: PlanRunner) -> bool:
        """Lets later calls run another program of the graph; calls that run finish theirs.

        False while the first program, or the one after an invalidation, is being fetched: it would
        replace this one.
        """
        with self._lock:
            is_fetching = self._fetching is not None and self._fetching.is_alive()
            if is_fetching or self._current is None:
                return False
            self._current = program
        counters.count("runner.programs_replaced")
        return True

    def boxed(self) -> BoxedFunction:
        """The function that torch calls with a list of arguments; it clears the list."""
        if self._cuda_graphs is not None:
            return self._boxed_with(self._cuda_graphs)

        def run(args: list[Any]) -> Sequence[Any]:
            current = self._current
            if current is None or not current.validity.is_valid:
                current = self._next()
                if current is None:
                    return self._eager(args)
            results = current(args)
            args.clear()  # the boxed convention: drops references, so that inputs can be freed
            return results

        mark_boxed(run)
        return run

    def _boxed_with(self, graphs: CudaGraphs) -> BoxedFunction:
        def run(args: list[Any]) -> Sequence[Any]:
            current = self._current
            if current is None or not current.validity.is_valid:
                current = self._next()
                if current is None:
                    return graphs.unrecorded(self._eager, args)
            return graphs.run(current, args)

        mark_boxed(run)
        return run

    def fetch_in_background(self) -> None:
        """Finds the program in a thread, unless one is doing so or has failed just now."""
        with self._lock:
            is_fetching = self._fetching is not None and self._fetching.is_alive()
            if is_fetching or time.monotonic() < self._retry_after_s:
                return
            # A thread has no present span; its trace is that of the call which needs the program.
            fetch = partial(self._fetch_in_background, spans.traceparent())
            self._fetching = run_in_background(fetch, "kernelfarm-swap")

    def _next(self) -> PlanRunner | None:
        """The program for a call that has no valid one; None if the call must run eager."""
        if self._settings.mode == "swap" or self._error is not None:
            self.fetch_in_background()
            self._warn()
            counters.count("runner.eager_calls")
            return None
        with self._lock:
            current = self._current
            if current is not None and current.validity.is_valid:
                return current
            if self._error is not None:  # another thread failed while this one waited
                return None
            try:
                self._current = self._find()
            except KernelfarmError as error:
                if self._settings.mode == "strict":
                    raise
                self._failed(error)
                self._warn()
                return None
            return self._current

    def _warn(self) -> None:
        """Warns of a failure, in a caller's thread because warning filters are the caller's."""
        error, self._unreported = self._unreported, None
        if error is not None:
            warn_eager(error, self._settings)

    def _fetch_in_background(self, parent: str) -> None:
        # In any case, calls must not start another fetch at once.
        self._retry_after_s = time.monotonic() + PAUSE_AFTER_FAILURE_S
        try:
            with spans.span("swap in", parent):
                self._current = self._find()
        except KernelfarmError as error:
            self._failed(error)
        else:
            self._error = None
            self._retry_after_s = 0.0
            counters.count("runner.programs_replaced")

    def _failed(self, error: KernelfarmError) -> None:
        # The farm will refuse the same request again, but may find a missing blob later.
        is_final = isinstance(error, CallerError) and not isinstance(error, NotFoundError)
        pause_s = float("inf") if is_final else PAUSE_AFTER_FAILURE_S
        self._retry_after_s = time.monotonic() + pause_s
        self._error = self._unreported = error


_all: weakref.WeakSet[GraphRunner] = weakref.WeakSet()


def _renew_locks() -> None:
    for runner in list(_all):  # a thread of the parent may have held the lock at the fork
        runner._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
