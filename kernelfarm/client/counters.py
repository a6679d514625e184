"""What the client's tiers did in this process, counted by name.

memory.hits, disk.hits, farm.hits         programs by the tier that had them
farm.misses, farm.merged                  programs that the farm compiled (for us, for others)
disk.misses, disk.missing_blobs                   not there; there without one of its blobs
disk.stale, memory.stale, farm.stale      there, but invalidated
disk.write_failures, disk.evicted         could not be kept; made room
refused.TIER.REASON                       what was not believed, by tier and reason of the error
swap.eager_calls, swap.swaps              calls before a program took over; programs that did
warm.hits, warm.misses, warm.stored          Dynamo graphs that were traced before; not yet; now
warm.traced.REASON                         graphs that are traced at every start, and why
warm.memory.hits, warm.disk.hits           traces of others that this process, this machine had
warm.farm.hits, warm.farm.misses           traces of others that the farm had; not, and ...REASON
warm.farm.published                        traces of ours that others may use now
warm.farm.not_published.REASON             that the farm did not take
warm.farm.stale, warm.farm.failures.REASON invalidated; not answered
farm.prefetched                            programs that came with a trace
refused.warm_farm.REASON                   traces that were not believed
warm.unreadable, warm.write_failures       files that are another user's; could not be kept
"""

from __future__ import annotations

import os
import threading
from collections import Counter

from kernelfarm.errors import KernelfarmError

_lock = threading.Lock()
_counts: Counter[str] = Counter()


def count(name: str, times: int = 1) -> None:
    """Counts something."""
    with _lock:
        _counts[name] += times


def count_refusal(tier: str, error: KernelfarmError) -> None:
    """Counts what a tier gave and we did not believe."""
    count(f"refused.{tier}.{error.reason.lower()}")


def snapshot() -> dict[str, int]:
    """All counters that are not 0, by name."""
    with _lock:
        return dict(sorted(_counts.items()))


def reset() -> None:
    """Begins at 0 again."""
    with _lock:
        _counts.clear()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 -- a fork may copy a lock that a thread of the parent holds
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
