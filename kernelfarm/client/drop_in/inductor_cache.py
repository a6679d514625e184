"""Inductor's remote caches at the farm: `kernelfarm.use_as_inductor_cache()`.

PyTorch chooses the store of a remote cache by the attribute `backend_override_cls` of the cache's
class. Its values are JSON with a pickle inside, which PyTorch unpickles after this module has
verified it.
"""

from __future__ import annotations

import platform
import threading
from collections import OrderedDict

import torch

from kernelfarm.client.drop_in.fail_open import without_errors
from kernelfarm.client.drop_in.shared_files import SharedFiles
from kernelfarm.client.drop_in.single_flight import found_or_awaited
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.pytorch.private.inductor import inductor_remote_caches, turn_on_remote_caches

INDUCTOR_COUNTERS = {
    "disk_hit": "inductor_cache.disk.hits",
    "farm_hit": "inductor_cache.farm.hits",
    "miss": "inductor_cache.farm.misses",
    "miss_reason": "inductor_cache.farm.misses.*",
    "waited": "inductor_cache.farm.waited",
    "stale": "inductor_cache.farm.stale",
    "failure": "inductor_cache.farm.failures.*",
    "published": "inductor_cache.farm.published",
    "not_published": "inductor_cache.farm.not_published.*",
}

_VALUE = "value"
_MOST_MISSED = 256
"""Values that a publisher remembers as missing, until Inductor has made them."""

_lock = threading.Lock()
_missed: OrderedDict[str, InductorValue] = OrderedDict()


def use_as_inductor_cache() -> None:
    """Lets Inductor's remote caches of graphs and autotuning results use the farm.

    Turns these two on, unless PyTorch's settings turn them off. Call it before the first
    compilation.
    """
    for name, cache in inductor_remote_caches().items():
        is_graph = name == "FxGraph"
        cache.backend_override_cls = FarmRemoteCache if is_graph else UnclaimedRemoteCache
    turn_on_remote_caches()


class InductorValue(SharedFiles):
    """The value of one key of an Inductor cache."""

    kind = "inductor"
    counter_names = INDUCTOR_COUNTERS

    def __init__(self, access: FarmAccess, key: str) -> None:
        # Inductor's key covers its sources, the graph, the settings and the GPU, but not what the
        # processor can do, for which it writes C++.
        parts = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            "key": key,
        }
        super().__init__(access, parts)


class FarmRemoteCache:
    """The store of one of Inductor's remote caches (its `RemoteCacheBackend`)."""

    claims = True

    def get(self, key: str) -> bytes | None:
        """The verified value of a key."""
        entry, files = found_or_awaited(
            lambda access: InductorValue(access, key), claims=self.claims
        )
        if entry is not None and files is None and entry.may_publish:
            _remember(key, entry)
        return None if files is None else files.get(_VALUE)

    def put(self, key: str, data: bytes) -> None:
        """Publishes a value that was looked up and missing, if this client may."""
        with _lock:
            value = _missed.pop(key, None)
        if value is not None:
            without_errors(lambda _: value.publish({_VALUE: data}), None)


class UnclaimedRemoteCache(FarmRemoteCache):
    """A store of values that Inductor makes after a compilation: nobody waits for these.

    Kernels are measured, and backward graphs compiled, when the program runs. If it is distributed,
    it cannot run there before the processes that would wait.
    """

    claims = False


def _remember(key: str, value: InductorValue) -> None:
    with _lock:
        _missed[key] = value
        while len(_missed) > _MOST_MISSED:
            _missed.popitem(last=False)
