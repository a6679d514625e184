"""Runs the framework's operators with its deterministic kernels.

Operators choose their kernels by the flag of `torch.use_deterministic_algorithms`, which is one for
all threads of a process. A program whose results must not depend on scheduling sets it around the
operators that the framework runs, if the user did not. The flag stays set until the last thread
needs it no longer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelfarm.client.pytorch.private import _set_deterministic_algorithms
from kernelfarm.client.pytorch.private.tracing import mark_boxed


class _Flag:
    """The framework's flag; `holders` counts the calls for which this module has set it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._warns_only = False

    def is_users(self) -> bool:
        """True if the user set the flag."""
        with self._lock:
            return torch.are_deterministic_algorithms_enabled() and not self._holders

    def hold(self) -> bool:
        """Sets the flag until `release`; false if there is nothing to release: the user set it."""
        with self._lock:
            if not self._holders:
                if torch.are_deterministic_algorithms_enabled():
                    return False
                self._warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
                _set_deterministic_algorithms(True, warn_only=False)
            self._holders += 1
            return True

    def release(self) -> None:
        """Ends one `hold`; the last one restores the flag."""
        with self._lock:
            if self._holders:
                self._holders -= 1
                self._restore()

    def renew(self) -> None:
        """Restores the flag in a forked child, which has none of the threads that hold it."""
        self._lock = threading.Lock()
        if self._holders:
            self._holders = 0
            self._restore()

    def _restore(self) -> None:
        if not self._holders:
            _set_deterministic_algorithms(False, warn_only=self._warns_only)


_flag = _Flag()
os.register_at_fork(after_in_child=_flag.renew)


def is_determinism_wanted() -> bool:
    """True if the user called `torch.use_deterministic_algorithms(True)`, with or without warnings.

    False while the flag is set for other threads of kernelfarm alone.
    """
    return _flag.is_users()


def with_deterministic_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the framework's flag set around each call.

    If the user set the flag, it stays as it is, also if it only warns.

    Raises:
        RuntimeError: (when called) the framework has no deterministic kernel for an operator.
    """

    def run(*args: Any) -> Any:
        if not _flag.hold():
            return function(*args)
        try:
            return function(*args)
        finally:
            _flag.release()

    return run


def boxed_with_deterministic_kernels(
    function: Callable[[list[Any]], Sequence[Any]],
) -> Callable[[list[Any]], Sequence[Any]]:
    """As `with_deterministic_kernels`, for a function that takes a list of arguments."""
    run = with_deterministic_kernels(function)
    mark_boxed(run)
    return run
