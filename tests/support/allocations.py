"""The bytes that calls hold, by the allocations and frees that PyTorch's profiler records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._profiler import _EventType


def peak_of(call: Callable[[], Any]) -> int:
    """The most bytes that a call on the CPU holds at a time beside what exists before it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    results = profile.profiler.kineto_results
    found = [] if results is None else _allocations(results.experimental_event_tree())
    if not found:
        raise RuntimeError("the profiler recorded no allocation; expected some in every call")
    sizes: dict[int, int] = {}
    live = peak = 0
    for address, size in found:
        if size > 0:
            sizes[address] = size
            live += size
            peak = max(peak, live)
        else:
            # For a block from before the call the profiler may state the size of an older one.
            live -= sizes.pop(address, 0)
    return peak


def _allocations(roots: list[Any]) -> list[tuple[int, int]]:
    """Address and bytes of each allocation in order; a free has negative bytes."""
    found = []
    open_events = list(roots)
    while open_events:
        event = open_events.pop()
        open_events += event.children
        if event.tag == _EventType.Allocation:
            facts = event.extra_fields
            found.append((event.start_time_ns, facts.ptr, facts.alloc_size))
    found.sort(key=lambda allocation: allocation[0])
    return [(address, size) for _, address, size in found]
