"""Packages on an NVIDIA GPU of this machine; without one these tests are reported as skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import kernelfarm
from tests.support.accuracy import assert_as_good_as_eager
from tests.support.farm import Farm
from tests.support.package_machines import machine, traced_frames
from tests.support.packaged_models import Scaled
from tests.support.tampering_proxy import TamperingFarm
from tests.support.trace_machines import Fleet, counted, traces_made

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("fresh_backend"),
]


@pytest.fixture
def fleet(vendor_farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    meddling = TamperingFarm(vendor_farm.endpoint)
    yield Fleet(vendor_farm, meddling, meddling.start(), tmp_path, monkeypatch)
    meddling.stop()


@pytest.mark.parametrize("is_prefetched", [False, True])
def test_a_machine_with_an_empty_disk_traces_nothing(fleet: Fleet, is_prefetched: bool) -> None:
    x = torch.randn(64, 12, device="cuda")
    machine(fleet, publishes=True)
    model = Scaled(fleet.number).cuda()
    with torch.no_grad():
        assert_as_good_as_eager(kernelfarm.packaged(model), model, x)
    assert counted()["packages.farm.published"] == 1
    machine(fleet)
    with torch.device("meta"):
        model = Scaled(fleet.number)
    fast = kernelfarm.packaged(model)
    with torch.no_grad():
        if is_prefetched:
            kernelfarm.prefetch(fast, x.to("meta"), device="cuda")
        model.to_empty(device="cuda").load_state_dict(Scaled(fleet.number, seed=5).state_dict())
        assert_as_good_as_eager(fast, model, x)
    seen = counted()
    assert (seen["packages.farm.hits"], seen["packages.loaded"], seen["farm.prefetched"]) == (
        1,
        1,
        1,
    )
    assert (traces_made(), traced_frames()) == (0, 0)
