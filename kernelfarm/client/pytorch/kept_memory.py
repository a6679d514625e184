"""Lets the C library keep memory that calls free, for the next call.

GNU's C library gives free memory at the end of its heap back to the system if it is more than a
threshold, which is twice the largest block that the process had from the system alone and has
freed. A call that allocates more than this, in smaller blocks, gets other pages each time: a
detector of objects (8 images, f32) had 5,200 page faults in each call, and took 1.18 times as long
(two threads, AMD EPYC, Zen 5). The library raises the threshold by itself, up to 64 MiB, when a
process frees such a block, so the client allocates and frees one that is large enough.

Source: the GNU C Library, `malloc/malloc.c` (`mp_.mmap_threshold`); mallopt(3), M_MMAP_THRESHOLD.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Final

MOST_FREE_BYTES: Final = 64 << 20
"""What the C library may keep then at the end of its heap: its own limit on 64-bit systems."""
_PAGES_BYTES: Final = 2 << 12
"""What the block lacks to the library's limit, with which its header and its page fit."""


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """True if the C library was asked to keep up to `MOST_FREE_BYTES` that the process has freed.

    It is asked once in a process. It changes nothing if the user set its thresholds, by
    `MALLOC_TRIM_THRESHOLD_` for example. Other allocators are not asked.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    library.free.argtypes, library.free.restype = (ctypes.c_void_p,), None
    # Only its first page is written to, so it takes no memory. If there is no such block, `malloc`
    # returns 0, and nothing changes.
    library.free(library.malloc(MOST_FREE_BYTES // 2 - _PAGES_BYTES))
    return True
