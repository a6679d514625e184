"""The edge towards the compiler of the user: no error leaves it, and no wait is long."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.wait_budget import WaitBudget
from kernelfarm.client.programs.finder import access_to
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import CallerError

MAX_WAIT_S = 5.0
"""One look-up or publication; after a wait as long as this, the farm is left alone for a while."""

ResultT = TypeVar("ResultT")


class DropInCacheWarning(UserWarning):
    """A cache of Triton or Inductor works without the farm."""


def without_errors(
    act: Callable[[FarmAccess], ResultT], otherwise: ResultT, max_wait_s: float = MAX_WAIT_S
) -> ResultT:
    """What `act` returns for the farm of the settings; `otherwise` without a farm or on an error.

    An error is counted, and the first one of the process is a warning.
    """
    try:
        access = _trusted_access()
        if access is None:
            return otherwise
        began_s = time.monotonic()
        with WaitBudget(max_wait_s).charged():
            result = act(access)
        if time.monotonic() - began_s >= max_wait_s:
            access.note_failure()
        return result
    except Exception as error:  # the compiler of the user goes on, whatever happens here
        counters.count("drop_in.errors")
        warn_once(f"{type(error).__name__}: {error}")
        return otherwise


def warn_once(cause: str) -> None:
    """Warns of the first problem of this process; counters have the others."""
    if _warned:
        return
    _warned.add(cause)
    with suppress(Warning):  # where warnings are errors
        warnings.warn(
            f"kernelfarm: {cause}; the compiler works as without a farm, and later problems are"
            " only counted",
            DropInCacheWarning,
            stacklevel=2,
        )


_warned: set[str] = set()


def _trusted_access() -> FarmAccess | None:
    """The farm, for a client that opted in and pinned the keys of publishers.

    Raises:
        CallerError: a setting is not valid, or the keys are not pinned.
    """
    settings = client_settings()
    if settings.drop_in_caches == "off":
        warn_once("a cache of the farm is installed, but KERNELFARM_DROP_IN_CACHES is off")
        return None
    if settings.signing == "off" or settings.trusted_keys_file is None:
        raise CallerError(
            "KERNELFARM_DROP_IN_CACHES=trusted runs the code of entries, so it needs the keys of"
            " their publishers in KERNELFARM_TRUSTED_KEYS_FILE, and KERNELFARM_SIGNING=required"
        )
    # Other modes are about what a graph does meanwhile; here the wait is bounded, and no error ends
    # the compilation.
    return access_to(settings.changed(mode="wait"))
