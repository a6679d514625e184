"""Packages by way of the farm: a machine with an empty disk neither traces nor compiles."""

from __future__ import annotations

import pytest
import torch

import kernelfarm
from kernelfarm.signing.key_files import PUBLIC_KEYS
from tests.support.like_eager import numbers
from tests.support.packaged_models import Scaled, scaled
from tests.support.trace_machines import Fleet, counted, traces_made


def traced_frames() -> int:
    """How many frames Dynamo has traced."""
    return int(torch._dynamo.utils.counters["frames"]["total"])


def machine(fleet: Fleet, **stated: object) -> None:
    pinned = {"TRUSTED_KEYS_FILE": str(fleet.keys / PUBLIC_KEYS), "PACKAGES": "trusted"}
    fleet.machine(**pinned, MODE="strict", **stated)


def test_a(fleet: Fleet) -> None:
    x = numbers(5, 12)
    for publishes in (True, False):
        machine(fleet, publishes=publishes)
        model = Scaled(fleet.number, seed=int(publishes))
        fast = kernelfarm.packaged(model)
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(fast(x), model(x))
        print(counted(), traces_made(), traced_frames(), dict(fleet.meddling.calls))
    assert 0
