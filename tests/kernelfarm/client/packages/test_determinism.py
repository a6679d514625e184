"""Packages and PyTorch's flag for deterministic kernels."""

from __future__ import annotations

import pytest
import torch

import kernelfarm
from tests.support.like_eager import numbers
from tests.support.package_machines import machine
from tests.support.packaged_models import scaled
from tests.support.trace_machines import Fleet, counted


@pytest.mark.usefixtures("flag_off_again")
def test_a_loaded_package_does_not_serve_calls_under_another_flag(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    fast, x = kernelfarm.packaged(scaled), numbers(3, 7)
    with torch.no_grad():
        for flag in (False, True, False):
            torch.use_deterministic_algorithms(flag)
            torch.testing.assert_close(fast(x, fleet.number), scaled(x, fleet.number))
    assert counted()["packages.farm.published"] == 2
