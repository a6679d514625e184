"""One process makes a missing entry; others wait for it, for a bounded time.

A process that may publish claims what it is about to make. If another one has the claim, a process
asks again until the entry is there, the claim has ended, or its own time is over
(`KERNELFARM_DROP_IN_WAIT_S`). Then it compiles.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from kernelfarm.client.drop_in.fail_open import without_errors
from kernelfarm.client.drop_in.shared_files import Files, SharedFiles
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.trace_client import TraceClaim

_CLAIMANT_BYTES = 16
_LONGEST_S = 600.0
"""Of a wait, and of a claim: a farm refuses a longer one."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

EntryT = TypeVar("EntryT", bound=SharedFiles)

_claimants: dict[int, bytes] = {}


def found_or_awaited(
    entry_at: Callable[[FarmAccess], EntryT | None], *, claims: bool = True
) -> tuple[EntryT | None, Files | None]:
    """The entry that `entry_at` names, and its files; both None if there is nothing to look for.

    The files are None if this process must compile. Each look-up is bounded by `MAX_WAIT_S`, and
    all of the wait by the setting. Unless it `claims`, this process neither claims nor waits.
    """
    entry: EntryT | None = None
    waits_until_s: float | None = None
    limit_s, pause_s = 0.0, _FIRST_PAUSE_S

    def look_up(access: FarmAccess) -> Files | None:
        nonlocal entry, limit_s
        entry = entry or entry_at(access)
        if entry is None:
            return None
        limit_s = min(access.settings.drop_in_wait_s, _LONGEST_S) if claims else 0.0
        if limit_s:
            claim_s = limit_s if entry.is_publisher else 0.0
            entry.claim = TraceClaim(_claimant(), claim_s, is_repeated=waits_until_s is not None)
        return entry.files()

    while True:
        files = without_errors(look_up, None)
        if entry is None or files is not None or not entry.in_flight_s:
            return entry, files
        if waits_until_s is None:
            entry.note_wait()
            waits_until_s = time.monotonic() + limit_s
        left_s = waits_until_s - time.monotonic()
        if left_s <= 0:
            entry.note_vain_wait()
            return entry, None
        # Processes that began to wait together ask at different times.
        time.sleep(min(left_s, entry.in_flight_s, pause_s * random.uniform(0.5, 1.5)))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _claimant() -> bytes:
    """This process's random number; a forked process has one of its own."""
    pid = os.getpid()
    if pid not in _claimants:
        _claimants[pid] = os.urandom(_CLAIMANT_BYTES)
    return _claimants[pid]
