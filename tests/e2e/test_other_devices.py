"""Models compiled for devices that are not here."""

from __future__ import annotations

import pytest
import torch

import kernelfarm
from examples.real_inputs import h
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.errors import CallerError
from tests.support.accuracy import assert_as_good_as_eager


def test_a_model_compiles_for_a_device_that_is_not_here(vendor_endpoint):
    args = (torch.randn(8, 16).half(), torch.randn(8, 16).half())
    compiled = kernelfarm.compile(h, args, targets=["cuda:sm_90a"])
    (kernel, *_) = compiled.programs["cuda:sm_90a"].plan.kernel_names
    texts = compiled.kernel_texts("cuda:sm_90a", kernel)
    assert ".target sm_90a" in texts["ptx"] and "def " in texts["triton"]
    assert set(compiled.stage_texts("cuda:sm_90a")) >= {"aten", "prims", "loops", "plan"}
    with pytest.raises(CallerError, match="not compiled for cpu"):
        compiled(*args)


def test_a_deterministic_program_adds_floats_in_the_framework(vendor_endpoint):
    def add(x, at, rows):
        return x.index_add(0, at, rows) * 2

    args = (torch.zeros(6, 4), torch.tensor([1, 4, 1]), torch.ones(3, 4))
    targets = ["cuda:sm_90a", host_cpu_target()]
    compiled = kernelfarm.compile(add, args, targets=targets, is_deterministic=True)
    there, here = (compiled.stage_texts(target) for target in targets)
    assert "scatter" not in there["prims"] and "extern" in there["prims"]
    assert "aten.index_add.default: extern (deterministic: kernels of the target" in there["report"]
    # On processors, a kernel that adds at positions runs on one thread.
    assert "scatter" in here["prims"] and "extern" not in here["prims"]
    assert_as_good_as_eager(compiled(*args), add, *args)
