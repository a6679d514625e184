"""A graph that torch calls: compiled while its program is valid, eager while there is none.

The program may come later than the first call (mode `swap`), and may be invalidated in the middle
of a process's life. Each call looks once which program there is and runs it to its end: no call is
lost, repeated, or run half by one and half by the other.

    mode      before the first program     after an invalidation
    wait      torch.compile waits          the next call waits for the next program
    swap      eager; asked in the          eager; asked in the background
              background
    strict    torch.compile waits          the next call waits

If the farm cannot give the next one, `strict` raises; otherwise calls run eager, with one warning,
and it is asked again in the background every `PAUSE_AFTER_FAILURE_S` seconds.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelfarm.client import counters
from kernelfarm.client.farm.access import PAUSE_AFTER_FAILURE_S
from kernelfarm.client.process.exit import run_in_background
from kernelfarm.client.programs.eager import warn_eager
from kernelfarm.client.programs.store import Validity
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import CallerError, KernelfarmError, NotFoundError

BoxedFunction = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class ReadyProgram:
    """A program that is ready to run, and whether it still may."""

    run: Callable[[Sequence[Any]], Sequence[Any]]
    validity: Validity


class GraphRunner:
    """`eager` runs the captured graph; `find` asks the tiers for its program."""

    def __init__(
        self, eager: BoxedFunction, find: Callable[[], ReadyProgram], settings: ClientSettings
    ) -> None:
        self._eager = eager
        self._find = find
        self._settings = settings
        self._current: ReadyProgram | None = None
        self._lock = threading.Lock()
        self._fetching: threading.Thread | None = None
        self._retry_after_s = 0.0
        self._error: KernelfarmError | None = None
        self._unreported: KernelfarmError | None = None
        _all.add(self)

    def fetch(self) -> None:
        """Finds the program now.

        Raises:
            KernelfarmError: no tier has it.
        """
        self._current = self._find()

    def boxed(self) -> BoxedFunction:
        """The function that torch calls with a list of arguments, which it empties."""

        def run(args: list[Any]) -> Sequence[Any]:
            current = self._current
            if current is None or not current.validity.is_valid:
                current = self._next()
                if current is None:
                    return self._eager(args)
            results = current.run(args)
            args.clear()  # the caller hands its references over, so that inputs can be freed
            return results

        run._boxed_call = True  # type: ignore[attr-defined] # AOT Autograd's mark of this convention
        return run

    def fetch_in_background(self) -> None:
        """Begins to find the program, unless that goes on already or failed just now."""
        with self._lock:
            is_asking = self._fetching is not None and self._fetching.is_alive()
            if is_asking or time.monotonic() < self._retry_after_s:
                return
            self._fetching = run_in_background(self._fetch_in_background, "kernelfarm-swap")

    def _next(self) -> ReadyProgram | None:
        """The program that replaces an invalid one or that was awaited; None: run eager."""
        if self._settings.mode == "swap" or self._error is not None:
            self.fetch_in_background()
            self._warn()
            counters.count("runner.eager_calls")
            return None
        with self._lock:
            current = self._current
            if current is not None and current.validity.is_valid:
                return current
            if self._error is not None:  # another thread asked in vain while this one waited
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
        """Warns of a failure in a caller's thread: filters of warnings are the caller's."""
        error, self._unreported = self._unreported, None
        if error is not None:
            warn_eager(error, self._settings)

    def _fetch_in_background(self) -> None:
        # Whatever happens, calls go on and do not ask at once again.
        self._retry_after_s = time.monotonic() + PAUSE_AFTER_FAILURE_S
        try:
            self._current = self._find()
        except KernelfarmError as error:
            self._failed(error)
        else:
            self._error = None
            self._retry_after_s = 0.0
            counters.count("runner.programs_replaced")

    def _failed(self, error: KernelfarmError) -> None:
        # What the farm refuses once it refuses again; what it lost it may find.
        is_final = isinstance(error, CallerError) and not isinstance(error, NotFoundError)
        pause_s = float("inf") if is_final else PAUSE_AFTER_FAILURE_S
        self._retry_after_s = time.monotonic() + pause_s
        self._error = self._unreported = error


_all: weakref.WeakSet[GraphRunner] = weakref.WeakSet()


def _renew_locks() -> None:
    for program in list(_all):  # a fork may copy a lock that a thread of the parent holds
        program._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
