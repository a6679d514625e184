"""Advice to Linux: to back large new tensors of a processor by pages of 2 MiB.

The C library takes memory of more than 32 MiB from the system at each call, and gives it back when
it is freed. To fill 100 MB then takes 40 ms with pages of 4 KiB, most of it for page faults, and 6
ms with pages of 2 MiB (AMD EPYC, Zen 5). Smaller tensors are new memory less often.
The arena stays, so its pages cost faults once, and huge ones made no model faster.

Most systems give such pages to memory for which a process asks for them (`madvise`). Others give
them to all memory, or to none; the advice then changes nothing.

Source: Linux, Documentation/admin-guide/mm/transhuge.rst.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Final

import torch

LEAST_BYTES: Final = 8 << 20
"""Smaller tensors have few whole pages of 2 MiB, and cost few faults."""
_HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


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
