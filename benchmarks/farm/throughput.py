"""Kernels a second of farm and bare pool, by turns, and the processor time of the farm's parts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import psutil

from benchmarks.farm.bare_farm import BareFarm
from benchmarks.farm.bare_pool import BarePool
from kernelfarm.internal.v1 import loops_pb2
from tests.support.processes import process_tree

_WARM_UP_KERNELS = 8
"""For each process: the first kernels of a process take longer."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rounds of one target and number of processes.

    Rates are in kernels a second, processor times in milliseconds for a kernel.
    """

    target: str
    processes: int
    kernels: int
    bare: list[float]
    farm: list[float]
    bare_cpu_ms: float
    farm_cpu_ms: dict[str, float]

    @property
    def ratio(self) -> float:
        """The median of the farm's rate, as a part of the pool's rate in the same round."""
        return statistics.median(f / b for f, b in zip(self.farm, self.bare, strict=True))


@dataclass(frozen=True, slots=True)
class Rounds:
    """How many rounds, and how long the pool takes for the kernels of one."""

    count: int
    seconds: float


def measure_rates(
    farm: BareFarm,
    target: str,
    kernels: Iterator[loops_pb2.Kernel],
    processes: int,
    rounds: Rounds,
) -> Rates:
    """Compiles the same kernels by farm and pool, by turns, with other kernels in each round."""
    farm.start_worker(processes)
    with BarePool(target, processes) as pool:
        warm_up = list(islice(kernels, _WARM_UP_KERNELS * processes))
        pool.seconds(warm_up)
        farm.seconds(warm_up)
        more = list(islice(kernels, _WARM_UP_KERNELS * processes))
        count = max(processes, round(rounds.seconds * len(more) / pool.seconds(more)))
        arms = {
            "pool": _Arm(pool.seconds, lambda: {"pool": _seconds_of(pool.pids(), with_ended=True)}),
            "farm": _Arm(farm.seconds, lambda: _farm_seconds(farm)),
        }
        for number in range(rounds.count):
            batch = list(islice(kernels, count))
            for name in ("pool", "farm") if number % 2 else ("farm", "pool"):
                arms[name].run(batch)
    bare, farms = arms["pool"], arms["farm"]
    bare_ms, farm_ms = bare.cpu_ms(count), farms.cpu_ms(count)
    return Rates(target, processes, count, bare.rates, farms.rates, bare_ms["pool"], farm_ms)


class _Arm:
    """The rounds of farm or pool: kernels a second, and processor time by part."""

    def __init__(
        self,
        seconds: Callable[[Sequence[loops_pb2.Kernel]], float],
        used_s: Callable[[], dict[str, float]],
    ) -> None:
        self._seconds, self._used_s = seconds, used_s
        self._cpu_s: Counter[str] = Counter()
        self.rates: list[float] = []

    def run(self, batch: Sequence[loops_pb2.Kernel]) -> None:
        """Compiles the kernels of a round."""
        before = self._used_s()
        self.rates.append(len(batch) / self._seconds(batch))
        self._cpu_s.update({part: s - before[part] for part, s in self._used_s().items()})

    def cpu_ms(self, kernels_of_a_round: int) -> dict[str, float]:
        """Processor time for a kernel in milliseconds, by part."""
        kernels = kernels_of_a_round * len(self.rates)
        return {part: 1e3 * seconds / kernels for part, seconds in self._cpu_s.items()}


def rates_table(rates: Sequence[Rates]) -> Iterator[str]:
    """A Markdown table with a row for each target and number of processes."""
    yield (
        "| target | processes | kernels a round | pool, kernels/s | farm, kernels/s |"
        " farm / pool: median, rounds |"
    )
    yield "|---|---:|---:|---:|---:|---|"
    for row in rates:
        each = sorted(f / b for f, b in zip(row.farm, row.bare, strict=True))
        yield (
            f"| {row.target} | {row.processes} | {row.kernels} |"
            f" {statistics.median(row.bare):.2f} | {statistics.median(row.farm):.2f} |"
            f" **{row.ratio:.3f}**, {', '.join(f'{ratio:.3f}' for ratio in each)} |"
        )


def cpu_table(rates: Sequence[Rates]) -> Iterator[str]:
    """A Markdown table of processor time by part, with a row as in `rates_table`."""
    parts = list(rates[0].farm_cpu_ms)
    yield f"| target | processes | pool | {' | '.join(parts)} | farm, sum |"
    yield "|---|---:|---:|" + "---:|" * len(parts) + "---:|"
    for row in rates:
        each = " | ".join(f"{row.farm_cpu_ms[part]:.1f}" for part in parts)
        total = sum(row.farm_cpu_ms.values())
        yield f"| {row.target} | {row.processes} | {row.bare_cpu_ms:.1f} | {each} | {total:.1f} |"


def _farm_seconds(farm: BareFarm) -> dict[str, float]:
    """Processor time of each part; that of the worker's descendants by kind."""
    pids = farm.parts()
    found = {part: _seconds_of([pid]) for part, pid in pids.items()}
    pool = [child for child in process_tree(pids["worker"])[1:] if child.ppid() == pids["worker"]]
    found["pool processes"] = _seconds_of([process.pid for process in pool])
    below = [inner for process in pool for inner in process_tree(process.pid)[1:]]
    found["sandbox"] = sum(_seconds(process, with_ended=True) for process in below)
    return found


def _seconds_of(pids: Sequence[int], *, with_ended: bool = False) -> float:
    return sum(_seconds(psutil.Process(pid), with_ended=with_ended) for pid in pids)


def _seconds(process: psutil.Process, *, with_ended: bool) -> float:
    """Processor time of a process, with that of children that it has waited for."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    own = times.user + times.system
    return own + times.children_user + times.children_system if with_ended else own
