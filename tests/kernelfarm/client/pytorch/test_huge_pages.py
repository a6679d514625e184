"""Large tensors of a processor are in memory for which huge pages were asked."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest
import torch

from kernelfarm.client.pytorch import huge_pages
from kernelfarm.client.pytorch.huge_pages import (
    HUGE_PAGE_BYTES,
    LEAST_BYTES,
    LEAST_MOVED_BYTES,
    ask_for_huge_pages,
    move_to_huge_pages,
)
from kernelfarm.client.pytorch.tensors import maker

_HAS_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()
pytestmark = pytest.mark.skipif(not _HAS_HUGE_PAGES, reason="NOT RUN: the system has none")
_LARGE = 64 << 20
"""Memory of its own: the C library takes so much from the system for each tensor."""


def mapping_of(tensor: torch.Tensor) -> dict[str, list[str]]:
    """What the system says about the mapping with the middle of a tensor."""
    address = tensor.data_ptr() + tensor.untyped_storage().nbytes() // 2
    is_inside, found = False, {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        begins = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if begins:
            is_inside = int(begins[1], 16) <= address < int(begins[2], 16)
        elif is_inside:
            name, *values = line.split()
            found[name] = values
    return found


def is_advised(tensor: torch.Tensor) -> bool:
    """True if the middle of a tensor is in a mapping with the flag of huge pages."""
    return "hg" in mapping_of(tensor)["VmFlags:"]


def huge_bytes(tensor: torch.Tensor) -> int:
    """The bytes in huge pages of the mapping with the middle of a tensor."""
    return 1024 * int(mapping_of(tensor)["AnonHugePages:"][0])


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


def has_huge_pages_on_demand() -> bool:
    """True if the system moves memory to huge pages when a process asks for it (Linux 6.1)."""
    release = platform.release().split(".")
    return platform.system() == "Linux" and (int(release[0]), int(release[1])) >= (6, 1)


@pytest.mark.skipif(not has_huge_pages_on_demand(), reason="NOT RUN: the system is older")
def test_moved_tensors_keep_addresses_and_values() -> None:
    moved = torch.arange(_LARGE // 4, dtype=torch.int32)
    address, before = moved.data_ptr(), huge_bytes(moved)
    move_to_huge_pages([moved])
    assert moved.data_ptr() == address
    assert torch.equal(moved, torch.arange(_LARGE // 4, dtype=torch.int32))
    if before < _LARGE - 2 * HUGE_PAGE_BYTES:  # the system may give such pages to all memory
        assert huge_bytes(moved) > before


def test_tensors_without_large_memory_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, ones of oneDNN without a storage, and all of them behind the time limit."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(huge_pages, "_madvise", lambda *given: asked.append(given))
    packed = torch.ones(2048, 1024).to_mkldnn()
    move_to_huge_pages([torch.empty(LEAST_MOVED_BYTES // 4 - 1), packed, torch.empty(0)])
    move_to_huge_pages([torch.empty(LEAST_MOVED_BYTES)], most_s=0.0)
    assert not asked
    large = torch.empty(LEAST_MOVED_BYTES)
    move_to_huge_pages([large])
    first, size, _ = asked[0]
    assert first <= large.data_ptr() < first + size
    assert asked[-1][0] + size >= large.data_ptr() + large.untyped_storage().nbytes()
