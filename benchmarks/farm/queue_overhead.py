"""Where the time of one kernel goes, from the spans of edge and worker."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarks.farm.bare_farm import bare_farm
from benchmarks.farm.bare_pool import BarePool
from kernelfarm.internal.v1 import loops_pb2
from tests.support.otlp_endpoint import ReceivedSpan, otlp_endpoint

STEPS = (
    "request to dispatch",
    "dispatch to begin",
    "begin to compilation",
    "compilation",
    "publication",
    "end to answer",
)
"""In order: the edge looks up and takes the lease; it sends the job, and a worker takes it; the
worker adopts and reads the job; sandbox and toolchain; storing; the edge wakes up and looks up."""

_EXPORTED_WITHIN_S = 30.0
_FIRST = 20
"""Kernels that warm up farm and pool; they are not counted."""


def measure_steps(target: str, kernels: Sequence[loops_pb2.Kernel]) -> dict[str, list[float]]:
    """Milliseconds of each step for each kernel; a farm compiles one at a time with one process."""
    with otlp_endpoint() as endpoint, bare_farm(target, **endpoint.environment) as farm:
        farm.start_worker(1)
        farm.seconds(kernels, together=1)
        deadline_s = time.monotonic() + _EXPORTED_WITHIN_S
        while sum(span.name == "kernel" for span in endpoint.spans()) < len(kernels):
            if time.monotonic() > deadline_s:
                raise RuntimeError("the spans of some kernels were not exported")
            time.sleep(0.1)
        traces: dict[str, dict[str, ReceivedSpan]] = defaultdict(dict)
        for span in endpoint.spans():
            traces[span.trace_id][span.name] = span
    builds = [trace for trace in traces.values() if "kernel" in trace]
    builds.sort(key=lambda trace: trace["kernel"].began_s)
    steps: dict[str, list[float]] = defaultdict(list)
    for trace in builds[_FIRST:]:
        for step, seconds in zip(STEPS, _steps_of(trace), strict=True):
            steps[step].append(1e3 * seconds)
    with BarePool(target, 1) as pool:
        pool.seconds(kernels[:_FIRST])
        steps["bare"] = [1e3 * pool.seconds([kernel]) for kernel in kernels[_FIRST:]]
    return steps


def _steps_of(trace: dict[str, ReceivedSpan]) -> tuple[float, ...]:
    """Seconds of each step; their sum is the time of the span `kernel`."""
    kernel, queue, job, compilation = (
        trace[name] for name in ("kernel", "queue", "job", "compile")
    )
    return (
        queue.began_s - kernel.began_s,
        job.began_s - queue.began_s,
        compilation.began_s - job.began_s,
        compilation.ended_s - compilation.began_s,
        job.ended_s - compilation.ended_s,
        kernel.ended_s - job.ended_s,
    )


def steps_table(found: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    """A Markdown table of medians with a column for each target."""
    yield f"| step | {' | '.join(found)} |"
    yield "|---|" + "---:|" * len(found)
    for step in STEPS:
        yield f"| {step} | " + " | ".join(_medians(steps[step]) for steps in found.values()) + " |"
    queue = [_queue_ms(steps) for steps in found.values()]
    yield "| **queue overhead**: dispatch to begin + end to answer | " + _row(queue)
    whole = [list(map(sum, zip(*(s[step] for step in STEPS), strict=True))) for s in found.values()]
    yield "| all of the farm | " + _row(whole)
    yield "| the pool, for the same kernel | " + _row([steps["bare"] for steps in found.values()])


def _queue_ms(steps: dict[str, list[float]]) -> list[float]:
    both = zip(steps["dispatch to begin"], steps["end to answer"], strict=True)
    return [before + after for before, after in both]


def _row(columns: Sequence[Sequence[float]]) -> str:
    return " | ".join(map(_medians, columns)) + " |"


def _medians(values: Sequence[float]) -> str:
    """The median and the 90th percentile."""
    return f"{statistics.median(values):.1f} ({statistics.quantiles(values, n=10)[-1]:.1f})"
