"""A cold fleet chooses among the configurations of autotuned kernels, with a real farm.

    python -m benchmarks.fleet_tuning [--clients 100] [--kernels 20] [--candidates 8] [--liars 0.1]
                                      [--markdown FILE] [--plot FILE]

Each client is a process, and its device is a simulated clock: a launch of candidate `c` of kernel
`k` takes a stated time, with noise, times the speed of the client's device. A client launches its
kernels one after the other, asks the farm as the client library does, and measures when it is asked
to, for as long as a client with a device would. Liars report reversed times. The exit status is 1
if a client launches another candidate than the fastest one (within the noise) in the end.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.machine import machine
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.tuning_client import FarmTuning
from kernelfarm.client.runtime.fleet_choice import FleetChoice
from kernelfarm.client.settings import ClientSettings
from kernelfarm.tuning import TuningSubject

_LAUNCHES: Final = 25
_WARM_UPS: Final = 3
"""Launches of one candidate while a client measures."""
_LAUNCH_S: Final = 0.02
"""Time between two launches of a kernel by a model."""
_NOISE: Final = 0.02
_MOST_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one client saw of one kernel; times are in seconds since the start of the fleet.

    `served_s` is that of the first winner, which later reports may replace, `won_s` that of the
    final one, `candidate`.
    """

    client: int
    kernel: int
    is_liar: bool
    has_measured: bool
    candidate: int
    served_s: float
    won_s: float


def main() -> int:
    options = _options()
    from examples.farm import running_farm  # noqa: PLC0415 -- clients do not need it

    with running_farm(vendors="cpu") as farm:
        seen = list(_fleet(farm.endpoint, options))
    costs = _costs(options)
    lines = [f"Machine: {machine()}.", "", *_table(seen, costs, options)]
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")
    if options.plot:
        _plot(seen, options.plot)
    return 0 if all(_is_fast(found, costs) for found in seen) else 1


def _fleet(endpoint: str, options: argparse.Namespace) -> Iterator[Seen]:
    """What all clients saw; each is a process."""
    start_s = time.monotonic() + 0.02 * options.clients
    results = []
    for client in range(options.clients):
        reads, writes = os.pipe()
        if os.fork() == 0:
            os.close(reads)
            status = 1
            try:
                found = _client(client, endpoint, start_s, options)
                os.write(writes, pickle.dumps(found))
                status = 0
            finally:
                os._exit(status)
        os.close(writes)
        results.append(reads)
    for reads in results:
        with open(reads, "rb") as stream:
            yield from pickle.load(stream)
        _, status = os.wait()
        if status:
            raise SystemExit(f"a client ended with status {status}")


def _client(client: int, endpoint: str, start_s: float, options: argparse.Namespace) -> list[Seen]:
    """One client: its kernels are launched in turn until all have winners."""
    own = random.Random(client)
    speed, is_liar = own.uniform(0.8, 1.25), own.random() < options.liars
    costs = _costs(options)
    found: list[Seen] = []
    served_s: dict[int, float] = {}
    with FarmClient(ClientSettings(endpoint=endpoint, timeout_s=30)) as farm:
        fleet = FarmTuning(farm)
        choices = {
            kernel: FleetChoice(fleet, _tuned(kernel, options), f"kernel {kernel}")
            for kernel in range(options.kernels)
        }
        time.sleep(max(0.0, start_s - time.monotonic()))
        while choices and time.monotonic() < start_s + _MOST_S:
            for kernel, choice in list(choices.items()):
                advice = choice.advice(can_measure=True)
                candidate = advice.winner if advice.is_final else None
                if advice.winner is not None:
                    served_s.setdefault(kernel, time.monotonic() - start_s)
                if advice.should_measure:
                    times_ms = [
                        speed * cost_ms * own.uniform(1 - _NOISE, 1 + _NOISE)
                        for cost_ms in costs[kernel]
                    ]
                    time.sleep(sum(times_ms) * (_LAUNCHES + _WARM_UPS) / 1e3)
                    candidate = times_ms.index(min(times_ms))
                    choice.report(times_ms[::-1] if is_liar else times_ms)
                if candidate is not None:
                    won_s = time.monotonic() - start_s
                    first_s = served_s.get(kernel, won_s)
                    measured = advice.should_measure
                    found.append(Seen(client, kernel, is_liar, measured, candidate, first_s, won_s))
                    del choices[kernel]
            time.sleep(_LAUNCH_S)
        time.sleep(1.0)  # reports are sent in the background
    return found


def _tuned(kernel: int, options: argparse.Namespace) -> TuningSubject:
    digest = random.Random(f"digest {kernel}").randbytes(32)
    return TuningSubject(digest, "a simulated device", options.candidates)


def _costs(options: argparse.Namespace) -> list[list[float]]:
    """Milliseconds of a launch, by kernel and candidate: the best take 0.05 to 0.5."""
    draw = random.Random("costs")
    costs = []
    for _ in range(options.kernels):
        best_ms = draw.uniform(0.05, 0.5)
        of_kernel = [best_ms * draw.uniform(1.05, 3.0) for _ in range(options.candidates)]
        of_kernel[draw.randrange(options.candidates)] = best_ms
        costs.append(of_kernel)
    return costs


def _is_fast(seen: Seen, costs: Sequence[Sequence[float]]) -> bool:
    """True if a client launches a candidate that noise cannot tell from the fastest one."""
    of_kernel = costs[seen.kernel]
    return of_kernel[seen.candidate] <= min(of_kernel) * (1 + _NOISE) / (1 - _NOISE)


def _table(
    seen: Sequence[Seen], costs: Sequence[Sequence[float]], options: argparse.Namespace
) -> list[str]:
    measured = [
        sum(found.has_measured for found in seen if found.kernel == kernel)
        for kernel in range(options.kernels)
    ]
    alone_s = [sum(c) * (_LAUNCHES + _WARM_UPS) / 1e3 for c in costs]
    others = [found for found in seen if not found.has_measured]
    slow = sum(not _is_fast(found, costs) for found in seen)
    served, won = (
        _percentiles([getattr(found, name) for found in others]) for name in ("served_s", "won_s")
    )
    return [
        "| clients, liars | kernels x candidates | measured by, mean and most"
        " | device s for measuring: fleet, each for itself | first winner after s, p50 and p99"
        " | final winner | slower choices |",
        "|---|---|---|---|---|---|---|",
        f"| {options.clients}, {len({s.client for s in seen if s.is_liar})}"
        f" | {options.kernels} x {options.candidates}"
        f" | {statistics.mean(measured):.1f}, {max(measured)}"
        f" | {sum(n * s for n, s in zip(measured, alone_s, strict=True)):.0f},"
        f" {options.clients * sum(alone_s):.0f}"
        f" | {served} | {won}"
        f" | {slow} of {options.clients * options.kernels} |",
    ]


def _percentiles(times_s: Sequence[float]) -> str:
    ordered = sorted(times_s)
    p50, p99 = (ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99))
    return f"{p50:.1f}, {p99:.1f}"


def _plot(seen: Sequence[Seen], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 -- clients do not need it

    mpl.use("svg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    for name, label in (("served_s", "a winner"), ("won_s", "the final winner")):
        times_s = sorted(getattr(found, name) for found in seen)
        parts = [100 * (number + 1) / len(times_s) for number in range(len(times_s))]
        axes.step(times_s, parts, where="post", label=label)
    axes.set_xlabel("seconds since the start of the fleet")
    axes.set_ylabel("% of clients and kernels")
    axes.legend(loc="lower right")
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--liars", type=float, default=0.1, help="part of the clients")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
