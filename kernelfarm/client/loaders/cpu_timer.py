"""Measures calls on this machine's processor by a clock, with operands that come from memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from kernelfarm.client.loaders.host_target import processor_name

_NAME_CHARS: Final = 120
_LAST_CACHE: Final = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_USUAL_CACHE_BYTES: Final = 32 * 1024**2
_MOST_FLUSHED_BYTES: Final = 256 * 1024**2
"""More would take longer to write than most products take."""


class CpuTimer:
    """A timer of calls with torch's number of threads at the time when it was made."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()

    def device(self) -> str:
        """The processor's name, the number of threads, and the version of torch and its library."""
        name = processor_name()[:_NAME_CHARS] or "a processor"
        return f"{name}, {self._threads} threads, torch {torch.__version__}"[:200]

    def obstacle(self) -> str:
        """Nothing prevents measuring."""
        return ""

    def times_ms(
        self, launch: Callable[[], None], prepare: Callable[[], None], count: int
    ) -> list[float]:
        """The times of `count` launches; memory of the last cache's size is written before each."""
        # A new thread gets torch's setting for the OpenMP runtime when it first asks torch for it.
        torch.get_num_threads()
        flushed = torch.empty(_flushed_bytes(), dtype=torch.uint8)
        times_ms = []
        for _ in range(count):
            prepare()
            flushed.zero_()
            began_s = time.perf_counter()
            launch()
            times_ms.append(1e3 * (time.perf_counter() - began_s))
        return times_ms


def _flushed_bytes() -> int:
    """Twice the last cache, within a limit, so that no operand stays in it."""
    try:
        kib = int(_LAST_CACHE.read_text(encoding="utf-8").strip().removesuffix("K"))
    except (OSError, ValueError):  # some systems do not state it
        return 2 * _USUAL_CACHE_BYTES
    return min(2048 * kib, _MOST_FLUSHED_BYTES)
