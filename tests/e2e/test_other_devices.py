"""Models compiled for devices that are not here."""

from __future__ import annotations

import pytest
import torch

import kernelfarm
from examples.real_inputs import h
from kernelfarm.errors import CallerError


def test_a_model_compiles_for_a_device_that_is_not_here(vendor_endpoint):
    args = (torch.randn(8, 16).half(), torch.randn(8, 16).half())
    compiled = kernelfarm.compile(h, args, targets=["cuda:sm_90a"])
    (kernel, *_) = compiled.programs["cuda:sm_90a"].plan.kernel_names
    texts = compiled.kernel_texts("cuda:sm_90a", kernel)
    assert ".target sm_90a" in texts["ptx"] and "def " in texts["triton"]
    assert set(compiled.stage_texts("cuda:sm_90a")) >= {"aten", "prims", "loops", "plan"}
    with pytest.raises(CallerError, match="not compiled for cpu"):
        compiled(*args)
