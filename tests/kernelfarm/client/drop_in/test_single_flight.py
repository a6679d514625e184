"""One process makes a missing entry of a drop-in cache, and the others wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch._inductor import config

from kernelfarm.client.drop_in import fail_open, single_flight
from kernelfarm.client.drop_in.inductor_cache import (
    FarmRemoteCache,
    UnclaimedRemoteCache,
    use_as_inductor_cache,
)
from kernelfarm.client.drop_in.shared_files import MAX_ENTRY_BYTES
from kernelfarm.client.pytorch.private.inductor import inductor_remote_caches
from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY
from tests.support.drop_in_programs import (
    compile_with_inductor,
    compile_with_triton,
    publishing,
)
from tests.support.torch_children import start_python
from tests.support.trace_machines import Fleet, counted

pytestmark = pytest.mark.usefixtures("prompt_repetitions")

_TIMEOUT_S = 60
_AT_ONCE = 4
_VALUE = b"a graph"

_CLAIMS_AND_HANGS = """
import sys, time
from kernelfarm.client.drop_in.inductor_cache import FarmRemoteCache
assert FarmRemoteCache().get(sys.argv[1]) is None
print("claimed", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _warns_anew() -> Iterator[None]:
    fail_open._warned.clear()
    yield
    fail_open._warned.clear()


def machine(fleet: Fleet, *, wait_s: float, publishes: bool = False) -> None:
    """Switches to another process's settings, claims included."""
    pinned = {"TRUSTED_KEYS_FILE": str(fleet.keys / PUBLIC_KEYS), "DROP_IN_CACHES": "trusted"}
    fleet.machine(publishes=publishes, DROP_IN_WAIT_S=str(wait_s), **pinned)
    single_flight._claimants.clear()


def key_of(fleet: Fleet) -> str:
    return f"pt2:fx-graph-v1::{fleet.number}:c1"


def events(counters: dict[str, int]) -> dict[str, int]:
    """The counters of Inductor's cache at the farm, with short names."""
    prefix = "inductor_cache.farm."
    return {name.removeprefix(prefix): n for name, n in counters.items() if name.startswith(prefix)}


def all_at_once(run: Any, fleet: Fleet) -> list[dict[str, Any]]:
    """What processes report that start together, each with folders of its own."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        made = [
            pool.submit(run, fleet, f"machine-{number}", **publishing(fleet))
            for number in range(_AT_ONCE)
        ]
        return [future.result() for future in made]


def test_processes_that_start_together_compile_each_kernel_once(fleet: Fleet) -> None:
    seen = all_at_once(compile_with_triton, fleet)
    compiled = sum(not hit for process in seen for hit in process["hits"])
    assert compiled == 2, [process["hits"] for process in seen]
    assert len({tuple(process["binaries"]) for process in seen}) == 1
    published = [process["counters"].get("triton_cache.farm.published", 0) for process in seen]
    assert sum(published) == 2
    assert not any(process["warnings"] for process in seen)


def test_processes_that_start_together_lower_a_graph_once(fleet: Fleet) -> None:
    seen = all_at_once(compile_with_inductor, fleet)
    assert sorted(process["miss"] for process in seen) == [0] * (_AT_ONCE - 1) + [1]
    assert sum(process["hit"] for process in seen) == _AT_ONCE - 1
    assert not any(process["warnings"] for process in seen)


def test_a_process_that_may_not_publish_waits_too(fleet: Fleet) -> None:
    key = key_of(fleet)
    machine(fleet, wait_s=_TIMEOUT_S, publishes=True)
    publisher = FarmRemoteCache()
    assert publisher.get(key) is None
    assert events(counted()) == {"misses": 1}

    machine(fleet, wait_s=_TIMEOUT_S)
    found: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: found.append(FarmRemoteCache().get(key)))
    waiting.start()
    while not events(counted()).get("waited"):
        assert waiting.is_alive()
        time.sleep(0.01)
    assert not found
    publisher.put(key, _VALUE)
    waiting.join(_TIMEOUT_S)
    assert found == [_VALUE]
    assert events(counted()) == {"waited": 1, "hits": 1, "published": 1}


def test_a_process_waits_no_longer_than_its_settings_say(fleet: Fleet) -> None:
    key = key_of(fleet)
    machine(fleet, wait_s=_TIMEOUT_S, publishes=True)
    assert FarmRemoteCache().get(key) is None

    machine(fleet, wait_s=0.5, publishes=True)
    began_s = time.monotonic()
    impatient = FarmRemoteCache()
    assert impatient.get(key) is None
    assert 0.5 <= time.monotonic() - began_s < _TIMEOUT_S / 2
    assert events(counted()) == {"waited": 1, "misses": 1, "misses.in_flight": 1}
    impatient.put(key, _VALUE)  # a claim reserves nothing

    machine(fleet, wait_s=0, publishes=True)
    assert FarmRemoteCache().get(key_of(fleet) + "other") is None
    machine(fleet, wait_s=_TIMEOUT_S)
    assert FarmRemoteCache().get(key_of(fleet) + "other") is None, "without a wait, no claim"
    assert events(counted()) == {"misses": 1}
    assert FarmRemoteCache().get(key) == _VALUE


def test_only_graphs_of_inductor_are_awaited(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other values are made when the program runs, perhaps together with who would wait."""
    monkeypatch.setattr(config, "fx_graph_remote_cache", False)
    monkeypatch.setattr(config, "autotune_remote_cache", False)
    caches = inductor_remote_caches()
    for cache in caches.values():
        monkeypatch.setattr(cache, "backend_override_cls", None)
    use_as_inductor_cache()
    stores = {name: cache.backend_override_cls for name, cache in caches.items()}
    assert stores.pop("FxGraph") is FarmRemoteCache
    assert set(stores.values()) == {UnclaimedRemoteCache}

    key = key_of(fleet)
    machine(fleet, wait_s=_TIMEOUT_S, publishes=True)
    publisher = UnclaimedRemoteCache()
    assert publisher.get(key) is None
    machine(fleet, wait_s=_TIMEOUT_S, publishes=True)
    assert UnclaimedRemoteCache().get(key) is None
    assert events(counted()) == {"misses": 1}
    publisher.put(key, _VALUE)
    machine(fleet, wait_s=_TIMEOUT_S)
    assert UnclaimedRemoteCache().get(key) == _VALUE


def test_another_process_takes_over_from_one_that_was_killed(fleet: Fleet) -> None:
    key, claim_s = key_of(fleet), 1.0
    variables = {
        **os.environ,
        "KERNELFARM_ENDPOINT": fleet.endpoint,
        "KERNELFARM_DISK_CACHE_DIR": str(fleet.folder / "killed"),
        "KERNELFARM_TRUSTED_KEYS_FILE": str(fleet.keys / PUBLIC_KEYS),
        "KERNELFARM_DROP_IN_CACHES": "trusted",
        "KERNELFARM_DROP_IN_WAIT_S": str(claim_s),
        "KERNELFARM_TRACE_KEY_FILE": str(fleet.keys / TRACE_KEY),
    }
    command = ["-c", _CLAIMS_AND_HANGS, key]
    with start_python(command, variables, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"claimed\n"
        holder.send_signal(signal.SIGKILL)

    machine(fleet, wait_s=_TIMEOUT_S, publishes=True)
    began_s = time.monotonic()
    successor = FarmRemoteCache()
    assert successor.get(key) is None
    assert time.monotonic() - began_s < claim_s + _TIMEOUT_S / 2
    assert events(counted()).get("misses") == 1
    successor.put(key, _VALUE)
    machine(fleet, wait_s=_TIMEOUT_S)
    assert FarmRemoteCache().get(key) == _VALUE


def test_a_farm_that_ends_does_not_keep_processes_waiting(fleet: Fleet) -> None:
    key = key_of(fleet)
    machine(fleet, wait_s=_TIMEOUT_S, publishes=True)
    assert FarmRemoteCache().get(key) is None

    machine(fleet, wait_s=_TIMEOUT_S)
    found: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: found.append(FarmRemoteCache().get(key)))
    with pytest.warns(fail_open.DropInCacheWarning):
        waiting.start()
        while not events(counted()).get("waited"):
            assert waiting.is_alive()
            time.sleep(0.01)
        fleet.meddling.stop()
        waiting.join(_TIMEOUT_S / 2)
    assert found == [None]
    fleet.meddling.start()


def test_an_entry_that_cannot_be_published_keeps_nobody_waiting(fleet: Fleet) -> None:
    key = key_of(fleet)
    machine(fleet, wait_s=_TIMEOUT_S, publishes=True)
    publisher = FarmRemoteCache()
    assert publisher.get(key) is None
    with pytest.warns(fail_open.DropInCacheWarning, match="it is not published"):
        publisher.put(key, os.urandom(MAX_ENTRY_BYTES))
    assert events(counted())["not_published.too_large"] == 1

    machine(fleet, wait_s=_TIMEOUT_S)
    assert FarmRemoteCache().get(key) is None
    assert events(counted()) == {"misses": 1}
