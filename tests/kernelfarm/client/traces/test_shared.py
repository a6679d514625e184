"""Traces by way of the farm: a machine with an empty disk traces nothing that another one traced.

A machine is a client process with a disk tier of its own; this process drops what it knows
between two of them. Each test has graphs of its own, by a constant that nobody else uses.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernelfarm.client.farm import access
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.programs.eager import KernelfarmWarning
from kernelfarm.signing.key_files import (
    PUBLIC_KEYS,
    TRACE_KEY,
)
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.like_eager import assert_like_eager, compiled, numbers
from tests.support.torch_children import run_python
from tests.support.trace_machines import Fleet, counted, traces_made

pytestmark = pytest.mark.usefixtures("prompt_repetitions")


def writes_a_cache(number: float) -> tuple[Callable[..., Any], Callable[[], Any]]:
    def step(cache: torch.Tensor, row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, row * number)
        return (cache @ row.t()).softmax(0)

    return step, lambda: (numbers(8, 6), numbers(1, 6, seed=1), torch.tensor([3]))


def gives_inputs_and_views(number: float) -> tuple[Callable[..., Any], Callable[[], Any]]:
    def views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.mul_(number)
        z = x + y
        return x, x.t(), x[1:, ::2], y.view(-1), z, z[0], z.t()

    return views, lambda: (numbers(4, 6), numbers(4, 6, seed=1))


def holds_constants(number: float) -> tuple[Callable[..., Any], Callable[[], Any]]:
    def attends(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(4, 4).triu() + number
        return torch.nn.functional.scaled_dot_product_attention(x, y, y, attn_mask=mask)

    return attends, lambda: (numbers(1, 2, 4, 6), numbers(1, 2, 4, 6, seed=1))


@pytest.mark.parametrize("case", [writes_a_cache, gives_inputs_and_views, holds_constants])
def test_a_machine_with_an_empty_disk_traces_nothing_and_asks_once(fleet: Fleet, case) -> None:
    function, make = case(fleet.number)
    fleet.machine(publishes=True)
    assert_like_eager(function, make, rtol=1e-5)
    assert (traces_made(), counted()["warm.farm.published"]) == (1, 1)
    disk = fleet.machine()
    assert_like_eager(function, make, rtol=1e-5)
    assert (traces_made(), counted()["warm.farm.hits"], counted()["farm.prefetched"]) == (0, 1, 1)
    assert dict(fleet.meddling.calls) == {"LookupTrace": 1}
    # What it got it keeps: the next process of this machine asks nobody.
    fleet.machine(disk=disk.name)
    assert_like_eager(function, make, rtol=1e-5)
    assert (traces_made(), counted()["warm.disk.hits"], counted()["disk.hits"]) == (0, 1, 1)
    assert not fleet.meddling.calls


def test_sizes_may_vary_on_the_other_machine_too(fleet: Fleet) -> None:
    number = fleet.number

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ y * number).softmax(-1), x.reshape(-1)[: y.shape[0]], x.t()

    for publishes in (True, False):
        fleet.machine(publishes=publishes)
        fast = compiled(function, dynamic=True)
        for rows in (3, 5, 9):
            x, y = numbers(rows, 4), numbers(4, 7, seed=rows)
            for ours, theirs in zip(fast(x, y), function(x, y), strict=True):
                torch.testing.assert_close(ours, theirs)
                assert ours.stride() == theirs.stride()
    assert (traces_made(), counted()["warm.farm.hits"]) == (0, 1)
    assert dict(fleet.meddling.calls) == {"LookupTrace": 1}


_PROGRAM = """
import json, torch
from kernelfarm.client import counters
cache, row = torch.zeros(8, 6), torch.arange(6.0).view(1, 6)
@torch.compile(backend="kernelfarm", options={"strict": True})
def step(cache, row):
    cache[2:3].add_(row * 0.1875)
    return cache.sum(0), cache[2]
total, view = step(cache, row)
assert torch.equal(view, row[0] * 0.1875) and torch.equal(total, view)
assert view.data_ptr() == cache[2].data_ptr()
made = torch._dynamo.utils.counters["aot_autograd"]["total"]
print(json.dumps({"made": made, **counters.snapshot()}))
"""


def test_two_processes_with_a_disk_each(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """The second one is this process, whose hash seed is another one."""
    environment = {
        **os.environ,
        "KERNELFARM_ENDPOINT": fleet.endpoint,
        "KERNELFARM_DISK_CACHE_DIR": str(fleet.folder / "one"),
        "KERNELFARM_TRACE_KEY_FILE": str(fleet.keys / TRACE_KEY),
    }
    done = run_python(("-c", _PROGRAM), environment)
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert (first["made"], first["warm.farm.published"]) == (1, 1)
    fleet.machine()
    exec(_PROGRAM, {"__name__": "__main__"})
    second = json.loads(capsys.readouterr().out)
    assert (second["made"], second["warm.farm.hits"], second["farm.prefetched"]) == (0, 1, 1)
    assert dict(fleet.meddling.calls) == {"LookupTrace": 1}


def test_equal_graphs_of_a_process_ask_once_also_without_a_disk(fleet: Fleet) -> None:
    fleet.machine(publishes=True)
    fleet.works()
    fleet.machine(DISK_CACHE_BYTES="0")
    fleet.works()
    torch._dynamo.reset()
    seen = fleet.works()
    assert (traces_made(), seen["warm.memory.hits"], seen["memory.hits"]) == (0, 1, 1)
    assert dict(fleet.meddling.calls) == {"LookupTrace": 1}


def test_what_is_on_disk_starts_without_the_farm(fleet: Fleet) -> None:
    fleet.machine(publishes=True)
    fleet.works()
    disk = fleet.machine()
    fleet.works()
    fleet.meddling.stop()
    fleet.machine(disk=disk.name)
    seen = fleet.works()
    assert (traces_made(), seen["warm.disk.hits"], seen["disk.hits"]) == (0, 1, 1)
    fleet.meddling.start()


@pytest.mark.parametrize("mode", ["wait", "swap"])
def test_without_a_farm_a_graph_is_traced_and_runs_eager(fleet: Fleet, mode: str) -> None:
    # A server that just stopped may still take connections and answer nothing: not for long.
    fleet.machine(publishes=True, TIMEOUT_S="5")
    fleet.environment.setattr(access, "WATCH_TIMEOUT_S", 1.0)
    fleet.meddling.stop()
    number, x = fleet.number, numbers(5, 7)
    function = lambda x: (x * number).cos()  # noqa: E731 (it is what is compiled)
    fast = torch.compile(function, backend="kernelfarm", options={"mode": mode})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        wait_until(
            lambda: torch.equal(fast(x), function(x)) and bool(said), TIMEOUT_S, "the warning"
        )
    assert [w.category for w in said] == [KernelfarmWarning]
    assert traces_made() == 1
    fleet.meddling.start()


def test_in_mode_swap_the_trace_is_used_once_the_keys_are_known(fleet: Fleet) -> None:
    fleet.machine(publishes=True)
    fleet.works()
    fleet.machine(TRUSTED_KEYS_FILE=str(fleet.keys / PUBLIC_KEYS))
    number, x = fleet.number, numbers(5, 7)
    function = lambda x: (x * number).sin().sum(0)  # noqa: E731 (it is what is compiled)
    fast = torch.compile(function, backend="kernelfarm", options={"mode": "swap"})
    torch.testing.assert_close(fast(x), function(x))
    assert (traces_made(), counted()["warm.farm.hits"]) == (0, 1)


def test_a_blob_that_is_damaged_on_its_way_is_read_again(fleet: Fleet) -> None:
    fleet.machine(publishes=True)
    fleet.works()
    fleet.machine()
    fleet.meddling.poisoned_reads = 1
    seen = fleet.works()
    assert (traces_made(), seen["warm.farm.hits"], seen["farm.hits"]) == (0, 1, 1)
    assert seen["refused.farm.poisoned_blob"] == 1


@pytest.mark.parametrize("tag", ["model:shared@1", "pass:capture"])
def test_what_was_invalidated_is_traced_again(fleet: Fleet, tag: str) -> None:
    fleet.machine(publishes=True, MODEL="shared@1")
    fleet.works()
    disk = fleet.machine(MODEL="shared@1")
    fleet.works()
    assert traces_made() == 0
    with CacheAdmin(fleet.farm.endpoint) as admin:
        assert admin.invalidate([tag], dry_run=True).traces >= 1
        admin.invalidate([tag])
    # Neither the disk, whose watch receives the invalidation, nor the farm has it any more.
    fleet.machine(disk=disk.name, MODEL="shared@1")
    seen = fleet.works()
    assert (traces_made(), seen["warm.farm.misses.epoch"]) == (1, 1)
    assert "warm.disk.hits" not in seen
    # Whoever may publishes again what it traces anew.
    fleet.machine(publishes=True, MODEL="shared@1")
    assert fleet.works()["warm.farm.published"] == 1
    fleet.machine(MODEL="shared@1")
    fleet.works()
    assert traces_made() == 0


def test_a_publisher_publishes_what_its_own_disk_has_but_the_farm_has_not(fleet: Fleet) -> None:
    disk = fleet.machine()
    fleet.works()
    assert traces_made() == 1
    # It is traced anew: what lies there may be older than an invalidation.
    fleet.machine(publishes=True, disk=disk.name)
    seen = fleet.works()
    assert (traces_made(), seen["warm.farm.published"]) == (1, 1)
    fleet.machine()
    assert fleet.works()["warm.farm.hits"] == 1 and traces_made() == 0
    # What the farm has it neither traces nor publishes again.
    fleet.machine(publishes=True, disk=disk.name)
    seen = fleet.works()
    assert (traces_made(), seen["warm.farm.hits"]) == (0, 1)
    assert dict(fleet.meddling.calls) == {"LookupTrace": 1}


def test_a_publisher_starts_from_its_disk_while_the_farm_is_away(fleet: Fleet) -> None:
    disk = fleet.machine(publishes=True)
    fleet.works()
    fleet.meddling.stop()
    fleet.machine(publishes=True, disk=disk.name)
    seen = fleet.works()
    assert (traces_made(), seen["warm.hits"], seen["disk.hits"]) == (0, 1, 1)
    assert "warm.farm.published" not in seen
    fleet.meddling.start()


def test_what_was_invalidated_is_published_anew_from_a_machine_that_kept_it(fleet: Fleet) -> None:
    disk = fleet.machine(publishes=True, MODEL="kept@1")
    fleet.works()
    with CacheAdmin(fleet.farm.endpoint) as admin:
        admin.invalidate(["model:kept@1"])
    fleet.machine(publishes=True, disk=disk.name, MODEL="kept@1")
    seen = fleet.works()
    assert (traces_made(), seen["warm.farm.misses.epoch"], seen["warm.farm.published"]) == (1, 1, 1)
