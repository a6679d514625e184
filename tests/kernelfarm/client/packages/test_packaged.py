"""Packages by way of the farm: a machine with an empty disk neither traces nor compiles."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest
import torch

import kernelfarm
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.farm.manifest_verifier import describe_packages
from kernelfarm.client.programs import finder
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import CallerError
from kernelfarm.signing import Space, new_signer
from kernelfarm.signing.key_files import PUBLIC_KEYS, read_keyring, write_keyring
from tests.support import packaged_models
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.like_eager import numbers
from tests.support.package_machines import call_model, machine, traced_frames
from tests.support.packaged_models import Attends, Scaled, scaled
from tests.support.trace_machines import Fleet, counted, traces_made


def test_a_machine_with_an_empty_disk_neither_traces_nor_compiles(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    seen = call_model(fleet, Scaled(fleet.number, seed=1))
    assert (seen["packages.farm.published"], seen["farm.misses"]) == (1, 1)
    disk = machine(fleet)
    seen = call_model(fleet)  # other weights
    assert (seen["packages.farm.hits"], seen["packages.loaded"], seen["farm.prefetched"]) == (
        1,
    ) * 3
    assert (traces_made(), traced_frames()) == (0, 0)
    assert dict(fleet.meddling.calls) == {"LookupTrace": 1}
    # What it got it keeps: the next process of this machine asks nobody.
    machine(fleet, disk=disk.name)
    seen = call_model(fleet)
    assert (seen["packages.disk.hits"], seen["disk.hits"], traced_frames()) == (1, 1, 0)
    assert not fleet.meddling.calls


def test_a_function_has_a_package_for_each_signature(fleet: Fleet) -> None:
    for publishes in (True, False):
        machine(fleet, publishes=publishes)
        fast = kernelfarm.packaged(scaled)
        with torch.no_grad():
            for rows in (3, 4):
                x = numbers(rows, 7)
                torch.testing.assert_close(fast(x, fleet.number), scaled(x, fleet.number))
                torch.testing.assert_close(fast(x, number=fleet.number), scaled(x, fleet.number))
    # A named argument is bound before the guards are checked, so it needs no package of its own.
    assert counted()["packages.farm.hits"] == 2
    assert (traces_made(), traced_frames()) == (0, 0)


def test_one_package_runs_sizes_that_vary(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    model, x = Scaled(fleet.number), numbers(5, 12)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    with torch.no_grad():
        kernelfarm.packaged(model)(x)
    machine(fleet)
    fast = kernelfarm.packaged(model)
    with torch.no_grad():
        for rows in (3, 5, 9):  # without marks: PyTorch does not store them in guards
            x = numbers(rows, 12)
            torch.testing.assert_close(fast(x), model(x))
    seen = counted()
    assert (seen["packages.loaded"], seen["packages.farm.hits"], traced_frames()) == (1, 1, 0)
    machine(fleet)
    assert call_model(fleet, rows=65)["refused.packages.guard_failed"] == 1
    assert traced_frames() == 1


def test_all_sizes_vary_if_the_caller_says_so(fleet: Fleet) -> None:
    for publishes in (True, False):
        machine(fleet, publishes=publishes)
        fast = kernelfarm.packaged(scaled, dynamic=True)
        with torch.no_grad():
            for rows in (3, 5):
                x = numbers(rows, rows + 2)
                torch.testing.assert_close(fast(x, fleet.number), scaled(x, fleet.number))
    assert (counted()["packages.farm.hits"], traced_frames()) == (1, 0)


def test_numbers_that_pytorch_must_fix_while_sizes_vary_are_no_obstacle(fleet: Fleet) -> None:
    """`aot_compile` itself gives up where `torch.compile` traces again with a constant."""
    for publishes in (True, False):
        machine(fleet, publishes=publishes)
        model = Attends(fleet.number)
        fast = kernelfarm.packaged(model, dynamic=True)
        with torch.no_grad():
            for rows in (3, 5):
                x = numbers(1, rows, 8)
                torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)
        assert counted().get("packages.farm.published", 0) == publishes
    assert (counted()["packages.farm.hits"], traced_frames()) == (1, 0)


def test_a_call_that_the_guards_do_not_cover_is_compiled(fleet: Fleet) -> None:
    for publishes in (True, False):
        machine(fleet, publishes=publishes)
        model, x = Scaled(fleet.number), numbers(5, 12)
        fast = kernelfarm.packaged(model)
        with torch.no_grad():
            fast(x)
    assert traced_frames() == 0
    loss = fast(x).square().sum()  # with gradients
    loss.backward()
    assert model.first.weight.grad is not None
    model.number += 1.0
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert traced_frames() > 0


@pytest.mark.parametrize("what", ["attribute", "global", "code", "dtype", "rows"])
def test_a_package_of_another_call_is_not_asked_for(
    fleet: Fleet, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    machine(fleet)
    model, rows = Scaled(fleet.number), 5
    match what:
        case "attribute":
            model.number *= 2
        case "global":
            monkeypatch.setattr(packaged_models, "SHIFT", 0.75)
        case "code":
            monkeypatch.setattr(packaged_models, "shifted", lambda x: x + 2.0)
        case "dtype":
            model.first.bias.requires_grad_(False)
        case _:
            rows = 6
    seen = call_model(fleet, model, rows)
    assert "packages.farm.hits" not in seen and seen["packages.farm.misses"] == 2
    assert traced_frames() == 1


def test_a_package_is_fetched_before_the_model_has_its_weights(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    machine(fleet)
    with torch.device("meta"):
        model, planned = Scaled(fleet.number), torch.empty(5, 12)
    fast = kernelfarm.packaged(model)
    with torch.no_grad():
        kernelfarm.prefetch(fast, planned, device="cpu")
        model.to_empty(device="cpu")
        model.load_state_dict(Scaled(fleet.number, seed=4).state_dict())
        x = numbers(5, 12)
        torch.testing.assert_close(fast(x), model(x))
    seen = counted()
    assert (seen["packages.prefetched"], seen["packages.farm.hits"]) == (1, 1)
    assert (seen["packages.disk.hits"], seen["farm.prefetched"], traced_frames()) == (1, 1, 0)
    assert dict(fleet.meddling.calls) == {"LookupTrace": 1}


def test_a_prefetched_package_that_was_invalidated_is_not_used(fleet: Fleet) -> None:
    machine(fleet, publishes=True, MODEL="prefetched@1")
    call_model(fleet)
    machine(fleet, MODEL="prefetched@1")
    model, x = Scaled(fleet.number), numbers(5, 12)
    fast = kernelfarm.packaged(model)
    with torch.no_grad():
        kernelfarm.prefetch(fast, x)
        wait_until(lambda: "packages.prefetched" in counted(), TIMEOUT_S, "the package")
        with CacheAdmin(fleet.farm.endpoint) as admin:
            admin.invalidate(["model:prefetched@1"])
        (access,) = finder.accesses.values()
        wait_until(
            lambda: "model:prefetched@1" in access.watch.invalidations.bumped,
            TIMEOUT_S,
            "the invalidation",
        )
        torch.testing.assert_close(fast(x), model(x))
    assert (traced_frames(), counted()["packages.farm.misses.epoch"]) == (1, 1)


def test_calls_of_several_threads_load_a_package_once(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    machine(fleet)
    model, x = Scaled(fleet.number), numbers(5, 12)
    fast = kernelfarm.packaged(model)

    def call(_: int) -> torch.Tensor:
        with torch.no_grad():
            return fast(x)

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(call, range(8)))
    for result in results:
        torch.testing.assert_close(result, model(x))
    assert (counted()["packages.loaded"], traced_frames()) == (1, 0)


def test_packages_are_off_unless_the_client_opts_in(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    machine(fleet, PACKAGES="off")
    seen = call_model(fleet)
    assert not [name for name in seen if name.startswith("packages.")]
    assert traced_frames() == 1


def test_who_opts_in_must_pin_the_keys_of_publishers(fleet: Fleet) -> None:
    fleet.machine(PACKAGES="trusted")
    with pytest.raises(CallerError, match="KERNELFARM_TRUSTED_KEYS_FILE"):
        kernelfarm.packaged(scaled)


def test_the_doctor_says_whose_packages_run(fleet: Fleet) -> None:
    machine(fleet)
    state, is_fine = describe_packages(client_settings())
    assert is_fine and fleet.signer().trusted.key_id in state
    pinned = fleet.folder / "pinned.json"
    known = read_keyring(fleet.keys / PUBLIC_KEYS).keys
    write_keyring(pinned, [key for key in known if key.space is not Space.TRACES])
    others = client_settings(packages="trusted", trusted_keys_file=pinned)
    assert describe_packages(others) == ("none: no key for traces is pinned", False)


@pytest.mark.parametrize("tag", ["pass:package", "model:packaged@1"])
def test_an_invalidated_package_is_used_no_more(fleet: Fleet, tag: str) -> None:
    machine(fleet, publishes=True, MODEL="packaged@1")
    call_model(fleet)
    disk = machine(fleet, MODEL="packaged@1")
    call_model(fleet)
    assert traced_frames() == 0
    with CacheAdmin(fleet.farm.endpoint) as admin:
        admin.invalidate([tag])
    machine(fleet, disk=disk.name, MODEL="packaged@1")
    seen = call_model(fleet)
    assert (traced_frames(), seen["packages.farm.misses.epoch"]) == (1, 1)
    assert seen["disk.stale"] >= 1
    assert "packages.disk.hits" not in seen


def test_a_package_of_a_revoked_key_is_used_no_more(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    disk = machine(fleet)
    call_model(fleet)
    pinned = fleet.folder / "pinned.json"
    known = read_keyring(fleet.keys / PUBLIC_KEYS).keys
    others = [key for key in known if key.space is not Space.TRACES]
    write_keyring(pinned, [*others, new_signer(Space.TRACES).trusted])
    machine(fleet, disk=disk.name, TRUSTED_KEYS_FILE=str(pinned))
    seen = call_model(fleet)
    assert traced_frames() == 1
    assert seen["refused.packages.untrusted_key"] == 1
    assert seen["refused.disk.untrusted_key"] >= 1


def test_without_a_farm_the_package_on_disk_is_used(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    disk = machine(fleet)
    call_model(fleet)
    fleet.meddling.stop()
    machine(fleet, disk=disk.name)
    seen = call_model(fleet)
    assert (seen["packages.disk.hits"], traced_frames()) == (1, 0)
    fleet.meddling.start()


def test_no_garbage_is_collected_while_a_package_is_loaded(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    machine(fleet)
    collected: list[bool] = []

    def note(_phase: str, _info: dict[str, int]) -> None:
        frame: FrameType | None = sys._getframe()
        names = set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        collected.append("load_package" in names)

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(50)
    try:
        seen = call_model(fleet)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert seen["packages.loaded"] == 1
    assert collected and not any(collected)
    assert gc.isenabled()
