"""The length of the SVE vectors of Arm processors, which the system sets for each thread.

New threads and processes get that of the thread that makes them, or the system's default.

Source: the Linux kernel's documentation, "Scalable Vector Extension support for AArch64 Linux".
"""

from __future__ import annotations

import ctypes
from typing import Final

_PR_SVE_GET_VL: Final = 51
_PR_SVE_VL_LEN_MASK: Final = 0xFFFF
"""The system has flags in the bits above."""


def sve_vector_bytes() -> int | None:
    """The bytes of this thread's SVE vectors; None if the processor or the system has none."""
    answer = int(ctypes.CDLL(None).prctl(_PR_SVE_GET_VL, 0, 0, 0, 0))
    return answer & _PR_SVE_VL_LEN_MASK if answer >= 0 else None
