"""Measures launches on a GPU by its events, with operands that come from memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

_NAME_CHARS = 150


class CudaTimer:
    """A timer of one GPU; it measures on torch's current stream."""

    def __init__(self, index: int, driver: str) -> None:
        """`driver` is the driver's version."""
        self._index = index
        self._driver = driver

    def device(self) -> str:
        """The GPU's name as the driver states it, and the driver's version."""
        name = torch.cuda.get_device_name(self._index)
        return f"{name[:_NAME_CHARS]}, CUDA driver {self._driver}"

    def obstacle(self) -> str:
        """A stream that records a CUDA graph runs nothing, so nothing can be measured."""
        if torch.cuda.is_current_stream_capturing():
            return "the stream records a CUDA graph"
        return ""

    def times_ms(
        self, launch: Callable[[], None], prepare: Callable[[], None], count: int
    ) -> list[float]:
        """The times of `count` launches; memory of the cache's size is written before each."""
        with torch.cuda.device(self._index):
            cache_bytes = torch.cuda.get_device_properties(self._index).L2_cache_size
            # Twice the cache, so that no operand stays in it.
            flushed = torch.empty(2 * cache_bytes, dtype=torch.uint8, device="cuda")
            events = []
            for _ in range(count):
                prepare()
                flushed.zero_()
                first, last = _event(), _event()
                first.record()
                launch()
                last.record()
                events.append((first, last))
            torch.cuda.current_stream().synchronize()
            return [first.elapsed_time(last) for first, last in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch lacks it
