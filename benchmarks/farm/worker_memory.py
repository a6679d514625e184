"""The memory of one worker over many kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

import psutil

from benchmarks.farm.bare_farm import bare_farm
from kernelfarm.internal.v1 import loops_pb2
from tests.support.memory_samples import MIB, Growth, Sample, growth_of, sample_of
from tests.support.processes import pool_processes, process_tree

_SAMPLES = 100


def measure_memory(
    target: str, kernels: Iterator[loops_pb2.Kernel], count: int
) -> tuple[list[Growth], dict[str, list[Sample]]]:
    """The growth of each part of a worker with one process, and its samples."""
    taken: dict[str, list[Sample]] = defaultdict(list)
    every = max(1, count // _SAMPLES)
    with bare_farm(target) as farm:
        worker = farm.start_worker(1).pid
        for done in range(0, count, every):
            farm.seconds(list(islice(kernels, every)))
            for part, pids in _parts(worker).items():
                taken[part].append(sample_of(part, done + every, pids))
    return [growth_of(series) for series in taken.values()], taken


def memory_table(growths: list[Growth]) -> Iterator[str]:
    """A Markdown table with a row for each part."""
    yield "| part | USS MiB: first, half, last | grows by MiB over the run | open files | flat |"
    yield "|---|---:|---:|---:|---|"
    for growth in growths:
        sizes = (growth.first_uss_bytes, growth.middle_uss_bytes, growth.last_uss_bytes)
        yield (
            f"| {growth.part} | {', '.join(f'{size / MIB:.1f}' for size in sizes)} |"
            f" {growth.grown_bytes / MIB:+.2f} | {growth.grown_files:+.1f} |"
            f" {'yes' if growth.is_flat else 'NO'} |"
        )


def _parts(worker: int) -> dict[str, list[int]]:
    """The process ids of each part of a worker."""
    (pool,) = pool_processes(worker)
    (zygote,) = psutil.Process(pool).children()
    return {
        "main process": [worker],
        "pool process": [pool],
        "zygote": [zygote.pid],
        "all, with sandboxed processes": [process.pid for process in process_tree(worker)],
    }
