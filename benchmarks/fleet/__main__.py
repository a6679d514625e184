"""Simulates a fleet of inference servers that start at once, and reports when they are warm.

    python -m benchmarks.fleet [--servers 1000] [--gateways 1 4] [--workers 4 16 64] [--seed 0]
                               [--markdown FILE] [--plot FILE] [--json FILE]
    python -m benchmarks.fleet --measure [--models NAME ...] [--target cuda:sm_90a]

Each number of gateways is simulated with each number of workers, in three ways: without
single flight, with single flight, and with a cache that a warming job has filled. The service times
are those of `service_times.json`, which `--measure` writes: it runs a real farm. Equal arguments
give equal results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from benchmarks.fleet.service_times import ServiceTimes, read_times, write_times
from benchmarks.fleet.simulation import Fleet, Outcome, simulate

WAYS = {
    "without single flight": {"single_flight": False, "warmed": False},
    "single flight": {"single_flight": True, "warmed": False},
    "single flight, warmed cache": {"single_flight": True, "warmed": True},
}
MODELS = ("llama-prefill-large", "llama-decode-large")
TARGET = "cuda:sm_90a"
WARM = 0.99

Run = tuple[str, Fleet, Outcome]


def main() -> int:
    options = _options()
    if options.measure:
        from benchmarks.fleet.measure import measured_times  # noqa: PLC0415 (imports torch)

        write_times(measured_times(options.models, options.target))
        return 0
    times = read_times()
    runs = list(_simulated(times, options))
    lines = [*times_table(times), "", *table(runs)]
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")
    if options.json:
        options.json.write_text(json.dumps([_facts(run) for run in runs], indent=1) + "\n")
    if options.plot:
        from benchmarks.fleet.plot import plot  # noqa: PLC0415 (imports matplotlib)

        plot(runs, options.plot)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--gateways", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--workers", nargs="+", type=int, default=[4, 16, 64])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", type=Path, help="writes the tables there too")
    parser.add_argument("--plot", type=Path, help="writes an SVG there")
    parser.add_argument("--json", type=Path, help="writes one object for each simulation there")
    parser.add_argument("--measure", action="store_true", help="measure the service times instead")
    parser.add_argument("--models", nargs="+", default=MODELS, help="of examples/large_models.py")
    parser.add_argument("--target", default=TARGET)
    return parser.parse_args()


def _simulated(times: ServiceTimes, options: argparse.Namespace) -> Iterator[Run]:
    for gateways, workers in product(options.gateways, options.workers):
        for name, way in WAYS.items():
            fleet = Fleet(options.servers, gateways, workers, seed=options.seed, **way)
            yield name, fleet, simulate(times, fleet)


def times_table(times: ServiceTimes) -> Iterator[str]:
    """A Markdown table of the service times."""
    calls = {
        "hit in the gateway's memory": times.hit_in_memory_s,
        "hit in Redis, gateway": times.hit_in_redis_s,
        "hit in Redis, Redis": times.redis_get_s,
        "pause of a worker between two jobs": times.between_jobs_s,
    }
    yield f"| step | {' | '.join(program.name for program in times.programs)} |"
    yield "|---|" + "---:|" * len(times.programs)
    for step, seconds in calls.items():
        yield f"| {step}, ms |" + f" {1e3 * seconds:.2f} |" * len(times.programs)
    for step in ("import", "decompose", "optimize", "publish", "compile_hit", "read_binaries"):
        each = (f" {1e3 * getattr(p, f'{step}_s'):.1f} |" for p in times.programs)
        yield f"| {step.replace('_', ' ')}, ms |" + "".join(each)
    jobs = [[times.jobs_s[kernel] for kernel in p.kernels] for p in times.programs]
    yield "| kernels |" + "".join(f" {len(each)} |" for each in jobs)
    yield "| jobs of all its kernels, s |" + "".join(f" {sum(each):.2f} |" for each in jobs)
    yield "| longest job, s |" + "".join(f" {max(each):.2f} |" for each in jobs)
    for size in ("program", "binary"):
        each = (f" {getattr(p, f'{size}_bytes') / 1024:.0f} |" for p in times.programs)
        yield f"| {size}, KiB |" + "".join(each)


def table(runs: Sequence[Run]) -> Iterator[str]:
    """A Markdown table with a row for each simulation."""
    yield (
        "| gateways | workers | | 99 % warm after, s | half warm after, s |"
        " first request: median, s | kernel jobs | worker time, s |"
    )
    yield "|---:|---:|---|---:|---:|---:|---:|---:|"
    for name, fleet, outcome in runs:
        first_s = sorted(outcome.first_requests_s)[len(outcome.first_requests_s) // 2]
        yield (
            f"| {fleet.gateways} | {fleet.workers} | {name} | {outcome.warm_by_s(WARM):.2f} |"
            f" {outcome.warm_by_s(0.5):.2f} | {first_s:.3f} | {outcome.jobs.total()} |"
            f" {outcome.worker_s:.1f} |"
        )


def _facts(run: Run) -> dict[str, object]:
    name, fleet, outcome = run
    return {
        "way": name,
        **asdict(fleet),
        "warm_99_s": outcome.warm_by_s(WARM),
        "least_first_request_s": min(outcome.first_requests_s),
        "jobs": outcome.jobs.total(),
        "most_jobs_of_a_kernel": max(outcome.jobs.values(), default=0),
        "builds": dict(outcome.builds),
    }


if __name__ == "__main__":
    raise SystemExit(main())
