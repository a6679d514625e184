"""Advice to Linux: to back large new tensors of a processor by pages of 2 MiB.

The C library takes memory of more than 32 MiB from the system at each call, and gives it back when
it is freed. To fill 100 MB then takes 40 ms with pages of 4 KiB, most of it for page faults, and 6
ms with pages of 2 MiB (AMD EPYC, Zen 5). Smaller tensors are new memory less often.
The arena stays, so its pages cost faults once, and huge ones made no model faster.

Weights are read whole in each call of a model that decodes. From pages of 2 MiB, products of 8 rows
by weights of bf16 take 0.75 to 0.95 of the time, of one row 0.86 to 0.94 (the same machine, one
thread): the processor knows their addresses, and what it fetches ahead does not end after 4 KiB. So
the system moves weights that do not change to such pages.

Most systems give such pages to memory for which a process asks for them (`madvise`). Others give
them to all memory, or to none; the advice then changes nothing.

Source: Linux, Documentation/admin-guide/mm/transhuge.rst.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Iterable
from typing import Final

import torch

LEAST_BYTES: Final = 8 << 20
"""Smaller tensors have few whole pages of 2 MiB, and cost few faults."""
HUGE_PAGE_BYTES: Final = 2 << 20
_HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)
_COLLAPSE: Final = 25
"""MADV_COLLAPSE of Linux since 6.1, which Python has no name for."""
LEAST_MOVED_BYTES: Final = 1 << 20
"""Of smaller tensors, caches hold more, and pages would have more of other memory."""
MOST_MOVING_S: Final = 5.0
"""A GiB takes 0.3 s, or 2.6 s where the system frees whole pages first (AMD EPYC, Zen 5)."""


def _advise() -> Callable[[int, int, int], int] | None:
    """The C library's function; None if the system has no such advice."""
    if _HUGE_PAGES is None:
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found.restype = ctypes.c_int
    return found


_madvise: Final = _advise()


def ask_for_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, a new one of a processor; the system is asked for huge pages of its memory."""
    if _madvise is not None and _HUGE_PAGES is not None:
        storage = tensor.untyped_storage()
        end = storage.data_ptr() + storage.nbytes()
        start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        # A system without such pages refuses the advice: the memory is as good as without it.
        _madvise(start, (end - start) // mmap.PAGESIZE * mmap.PAGESIZE, _HUGE_PAGES)
    return tensor


def move_to_huge_pages(tensors: Iterable[torch.Tensor], most_s: float = MOST_MOVING_S) -> None:
    """Asks the system to move large tensors to huge pages; their addresses and values stay.

    After so many seconds, the rest stays where it is.
    """
    if _madvise is None or _HUGE_PAGES is None:
        return
    end_s = time.monotonic() + most_s
    for tensor in tensors:
        # oneDNN's packed weights have no storage.
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() < LEAST_MOVED_BYTES:
            continue
        # What is beside a tensor in its first and last page moves with it.
        start = storage.data_ptr() // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        end = storage.data_ptr() + storage.nbytes()
        for first in range(start, end, HUGE_PAGE_BYTES):
            if time.monotonic() >= end_s:
                return
            # A system without such pages, or an end that is not mapped: the memory is as good.
            _madvise(first, HUGE_PAGE_BYTES, _COLLAPSE)
