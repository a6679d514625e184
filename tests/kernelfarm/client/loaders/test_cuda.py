"""Which target a GPU runs, and what a launch passes."""

from __future__ import annotations

import ctypes

import pytest
import torch

from kernelfarm.client.loaders.cuda import _Arguments, best_target
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.artifact import LaunchFacts


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((9, 0), "cuda:sm_90a"),
        ((8, 6), "cuda:sm_80"),
        ((8, 9), "cuda:sm_89"),
        ((10, 3), None),
        ((7, 5), None),
    ],
)
def test_gpus_get_the_newest_target_that_they_run(capability, target):
    targets = ["cuda:sm_80", "cuda:sm_89", "cuda:sm_90a", "cuda:sm_100a", "cuda:sm_120a"]
    assert best_target(*capability, targets) == target


def test_a_kernel_gets_its_buffers_then_its_sizes_then_its_own_memory():
    words = ("buffer", "buffer", "size", "workspace", "scratch")
    table = (ctypes.c_uint64 * 3)(11, 22, 33)
    own = torch.empty(512, dtype=torch.uint8)
    arguments = _Arguments(LaunchFacts("f", arguments=words), (7,))
    passed = arguments.of_table(ctypes.addressof(table), own)
    values = [ctypes.c_uint64.from_address(address).value for address in passed]
    assert values == [11, 22, 7, own.data_ptr(), 0]


def test_an_unknown_argument_is_refused():
    arguments = _Arguments(LaunchFacts("f", arguments=("buffer", "texture")), ())
    with pytest.raises(MalformedMessageError, match="expected buffer, size, scratch or workspace"):
        arguments.of_table(0)
