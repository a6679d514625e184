"""Large tensors of a processor are in memory for which huge pages were asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kernelfarm.client.pytorch.huge_pages import LEAST_BYTES, ask_for_huge_pages
from kernelfarm.client.pytorch.tensors import maker

_HAS_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()
pytestmark = pytest.mark.skipif(not _HAS_HUGE_PAGES, reason="NOT RUN: the system has none")
_LARGE = 64 << 20
"""Memory of its own: the C library takes so much from the system for each tensor."""


def is_advised(tensor: torch.Tensor) -> bool:
    """True if the middle of a tensor is in a mapping with the flag of huge pages."""
    address = tensor.data_ptr() + tensor.untyped_storage().nbytes() // 2
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if found:
            is_inside = int(found[1], 16) <= address < int(found[2], 16)
        elif is_inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError(f"no mapping has {address:#x}")


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((_LARGE,), (1,), True),
        ((2, _LARGE // 2), (_LARGE // 2, 1), True),
        ((1, 16), (1, 1), False),
        ((0, _LARGE), (_LARGE, 1), False),
    ],
)
def test_large_tensors_ask_for_them(
    shape: tuple[int, ...], strides: tuple[int, ...], *, expected: bool
) -> None:
    made = maker(shape, strides, torch.uint8, torch.device("cpu"))()
    assert made.shape == shape
    assert made.stride() == strides
    if made.numel():
        assert is_advised(made) == expected


def test_memory_is_as_it_was() -> None:
    """Pages at both ends, which are shared with other memory, get no advice."""
    whole = torch.arange(LEAST_BYTES // 4, dtype=torch.int32)
    assert ask_for_huge_pages(whole) is whole
    assert torch.equal(whole, torch.arange(LEAST_BYTES // 4, dtype=torch.int32))
