"""Times of the arms of a comparison, which take turns in one process."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch

Call = Callable[[], object]


def median_ms(
    arms: Mapping[str, Call], device: str, *, rounds: int, calls: int, warm_ups: int = 3
) -> dict[str, float]:
    """Milliseconds of a call of each arm: the median of `rounds_ms`."""
    found = rounds_ms(arms, device, rounds=rounds, calls=calls, warm_ups=warm_ups)
    return {arm: statistics.median(times) for arm, times in found.items()}


def rounds_ms(
    arms: Mapping[str, Call], device: str, *, rounds: int, calls: int, warm_ups: int = 3
) -> dict[str, list[float]]:
    """Milliseconds of a call of each arm in each of some rounds, in which the arms alternate.

    A round times `calls` calls in a row: on a GPU with events, else by the clock. Its order is
    drawn anew: caches and memory are as the arm before has left them. The draws of all runs are
    the same.
    """
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    for call in arms.values():
        for _ in range(warm_ups):
            call()
    time_ms = _gpu_ms if device == "cuda" else _clock_ms
    draw = random.Random(0)  # no secret
    for _ in range(rounds):
        for arm, call in draw.sample([*arms.items()], len(arms)):
            found[arm].append(time_ms(call, calls))
    return found


def replayed(call: Call) -> Call:
    """The kernels and library calls of a call, captured as a CUDA graph; it runs them again."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def _gpu_ms(call: Call, calls: int) -> float:
    begin, end = (_event() for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def _clock_ms(call: Call, calls: int) -> float:
    begin_s = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e3 * (time.perf_counter() - begin_s) / calls


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
