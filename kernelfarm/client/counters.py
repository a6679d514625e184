"""Counters of this process: what the client's tiers did.

memory.hits, disk.hits, farm.hits           programs found, by tier
farm.misses, farm.merged                    programs that the farm compiled: for this client; for
                                            another one, whose build this client waited for
farm.prefetched                             programs that the farm sent with their traces
disk.misses, disk.missing_blobs             programs not on disk; entries with a missing blob
disk.stale, memory.stale, farm.stale        programs found but invalidated
disk.unconfirmed                            entries that may have been invalidated while no process
                                            received invalidations
disk.unreadable                             entries that another user may have written
disk.write_failures, disk.evicted           entries that could not be written; that a sweep removed
refused.TIER.REASON                         results that failed verification, by tier and error
runner.eager_calls, runner.programs_replaced  calls that ran eager for lack of a program; programs
                                            that a background fetch installed
cuda_graphs.recorded                        calls that were recorded as CUDA graphs
cuda_graphs.launched                        calls of such graphs that launched kernels (warm-ups)
cuda_graphs.not_recorded.REASON             graphs that are not recorded, and why
traced.short                                graphs that one run traced, without AOT Autograd
traced.long.REASON                          graphs that AOT Autograd traced, and why
tuning.measured                             autotuned kernels whose configurations were measured
tuning.dropped                              configurations that were much slower than another one
tuning.out_of_time                          kernels of which not all configurations were measured
tuning.not_measured.REASON                  launches of their first configuration for another reason
tuning.fleet.winners, .reported             such kernels that the fleet's reports decided; whose
                                            times this client reported
tuning.fleet.failures.REASON                questions and reports that the farm did not answer
tuning.products.tuned                       programs with the fleet's choices for their products
tuning.products.auto                        searches for which the fleet had not chosen all of them
tuning.products.measured, .same             products that this client measured; whose candidates are
                                            the same program
tuning.products.refused.REASON              products that are not tuned, and why
tuning.products.failures.REASON             candidates and programs that could not be had
tuning.products.errors                      graphs whose tuning ended with a bug
warm.hits, warm.misses, warm.stored         Dynamo graphs whose trace this user's disk had; did not
                                            have; has now
warm.traced.REASON                          graphs that are traced at every start, and why
warm.memory.hits, warm.disk.hits            shared traces found in this process; on this disk
warm.farm.hits, warm.farm.misses            shared traces that the farm had; did not have (and
                                            warm.farm.misses.REASON)
warm.farm.stale, warm.farm.failures.REASON  shared traces that were invalidated; failed look-ups
warm.farm.published                         traces that this client published
warm.farm.not_published.REASON              traces that the farm did not accept
refused.warm_farm.REASON                    shared traces that failed verification
precompiled.made, precompiled.wrapped       graphs added to packages of PyTorch; those that AOT
                                            Autograd stored
precompiled.loaded, precompiled.not_covered  graphs loaded from packages; that no package can have
packages.loaded                             packages of calls that PyTorch loaded
packages.prefetched                         packages that were fetched before their call
packages.disk.hits, packages.farm.hits      packages that this disk had; that the farm had
packages.farm.misses, .misses.REASON        look-ups of packages that found nothing
packages.farm.stale, .failures.REASON       packages that were invalidated; failed look-ups
packages.farm.published                     packages that this client published
packages.farm.not_published.REASON          packages that the farm did not accept
packages.not_covered.REASON                 calls that no package can have, and why
packages.not_made                           calls for which PyTorch could not make a package
refused.packages.REASON                     packages that failed verification
triton_cache.disk.hits, .farm.hits          kernels of Triton that this disk had; that the farm had
triton_cache.farm.misses, .misses.REASON    look-ups of such kernels that found nothing
triton_cache.farm.stale, .failures.REASON   kernels that were invalidated; failed look-ups
triton_cache.farm.published                 kernels that this client published
triton_cache.farm.not_published.REASON      kernels that the farm did not accept
inductor_cache.*                            the same, of values of Inductor's remote caches
refused.drop_in.REASON                      kernels and values that failed verification
drop_in.errors                              errors in the caches of Triton and Inductor
warm.unreadable, warm.write_failures        trace files that another user may have written; that
                                            could not be written
"""

from __future__ import annotations

import os
import threading
from collections import Counter

from kernelfarm.errors import KernelfarmError

_lock = threading.Lock()
_counts: Counter[str] = Counter()


def count(name: str, times: int = 1) -> None:
    """Adds to a counter."""
    with _lock:
        _counts[name] += times


def count_refusal(tier: str, error: KernelfarmError) -> None:
    """Counts a result of a tier that failed verification."""
    count(f"refused.{tier}.{error.reason.lower()}")


def snapshot() -> dict[str, int]:
    """All counters that are not 0, by name."""
    with _lock:
        return dict(sorted(_counts.items()))


def reset() -> None:
    """Sets all counters to 0."""
    with _lock:
        _counts.clear()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 -- a thread of the parent may have held the lock at the fork
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
