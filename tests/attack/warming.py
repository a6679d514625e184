"""Latencies of interactive requests while a warming job fills every queue.

    python -m tests.attack.warming [--seconds 120] [--idle-seconds 120] [--vendors cpu cuda]
                                   [--workers 2] [--models 24] [--json FILE]

A farm, by default for the CPU and CUDA, first serves hits and small new programs alone, then beside
`kernelfarm warm`, which asks for more programs than the farm can compile in that time. The exit
status is 1 if a 99th percentile is above 1.3 times that of the idle farm, if a call failed, or if
the queues were not full. The models were captured before, and the job has the lowest priority,
because a real one has a machine of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelfarm.service.priority import yield_to_all
from tests.attack.measure import Row, row_of
from tests.attack.victim import HIT_KINDS, Victim
from tests.support.farm import Farm, running_farm, wait_until
from tests.support.hostile_requests import CPU, CUDA
from tests.support.processes import kill_tree
from tests.support.scrapes import scrape, value

LIMIT = 1.3
KINDS = (*HIT_KINDS, f"new for {CPU}")
TARGETS = {"cpu": CPU, "cuda": CUDA}
_WIDTH = 64
_FULL_JOBS = 300
"""Waiting warm-up jobs of each vendor before the measurement begins."""
_START_S = 240.0
_SCRAPE_EVERY_S = 1.0
_MOST_PARALLEL = 64
"""Graphs for which `kernelfarm warm` waits at once, at most."""


@dataclass
class Queues:
    """How many warm-up jobs waited for each vendor, each second; and how many were compiled."""

    waiting: dict[str, list[int]]
    compiled: int = 0

    @property
    def were_full(self) -> bool:
        """True if jobs of every vendor waited in nine of ten samples."""
        return all(
            seen and sum(number > 0 for number in seen) >= 0.9 * len(seen)
            for seen in self.waiting.values()
        )


@dataclass(frozen=True)
class WarmingResult:
    """The latencies, and what the farm did for the job meanwhile."""

    rows: tuple[Row, ...]
    queues: Queues
    load: float

    @property
    def holds(self) -> bool:
        """True if no limit was exceeded while the queues were full."""
        return self.queues.were_full and all(row.holds for row in self.rows)


@dataclass(frozen=True)
class MeasuredFarm:
    """The vendors of the farm, how many processes compile for each, and the models of the job."""

    vendors: tuple[str, ...] = ("cpu", "cuda")
    workers: int = 2
    models: int = 24


def measure_warming(
    seconds: float, idle_seconds: float, folder: Path, measured: MeasuredFarm
) -> WarmingResult:
    """Measures a new farm, first idle, then beside the job."""
    targets = [TARGETS[vendor] for vendor in measured.vendors]
    manifest = captured_manifest(folder, targets, measured.models)
    vendors, workers = ",".join(measured.vendors), measured.workers
    with running_farm(folder / "farm", vendors, workers=workers, metrics=True) as farm:
        victim = Victim(farm.endpoint, "")
        victim.prepare(targets)
        load = os.getloadavg()[0]
        # As during the job: the thread shares this interpreter.
        with _watched_queues(farm, measured.vendors):
            idle = victim.measure(idle_seconds, KINDS)
        with _warming(farm, manifest, min(measured.models, _MOST_PARALLEL)) as check_running:

            def has_jobs() -> bool:
                check_running()
                return min(_waiting(farm, measured.vendors).values()) >= _FULL_JOBS

            wait_until(has_jobs, _START_S, "jobs of the warm-up", every_s=_SCRAPE_EVERY_S)
            with _watched_queues(farm, measured.vendors) as queues:
                during = victim.measure(seconds, KINDS)
        rows = tuple(row_of(kind, idle[kind], during[kind], LIMIT) for kind in KINDS)
        return WarmingResult(rows, queues, load)


def captured_manifest(folder: Path, targets: Sequence[str], models: int) -> Path:
    """The manifest of the job, whose models have been captured."""
    path = folder / "warming.yaml"
    model = {
        "entry": "tests.attack.warmed_models:layers",
        "sizes": {"rows": {"min": 1, "max": 64}},
        "inputs": [["rows", _WIDTH]],
    }
    listed = [
        {**model, "name": f"layers-{number}", "arguments": {"number": number, "width": _WIDTH}}
        for number in range(models)
    ]
    path.write_text(json.dumps({"format": 1, "targets": list(targets), "models": listed}))
    command = [sys.executable, "-m", "tests.attack.capture_models", str(path)]
    subprocess.run([*command, str(captures_of(path))], check=True)
    return path


def captures_of(manifest: Path) -> Path:
    """The folder of a manifest's captures."""
    return manifest.with_suffix(".captures")


@contextmanager
def _warming(farm: Farm, manifest: Path, parallel: int) -> Iterator[Callable[[], None]]:
    """Runs `kernelfarm warm`, and kills it at the end; yields a check that it still runs."""
    log = manifest.with_name("warm.log")
    command = [sys.executable, "-m", "kernelfarm.cli", "warm", str(manifest), "--endpoint"]
    command += [
        farm.endpoint,
        "--parallel",
        str(parallel),
        "--captures",
        str(captures_of(manifest)),
    ]
    with log.open("w") as output:
        job = subprocess.Popen(command, stdout=output, stderr=output)
    yield_to_all(job.pid)

    def check_running() -> None:
        if job.poll() is not None:
            raise RuntimeError(f"the job ended with {job.returncode}:\n{log.read_text()[-4000:]}")

    try:
        yield check_running
        check_running()
    finally:
        kill_tree(job.pid)
        job.wait()


@contextmanager
def _watched_queues(farm: Farm, vendors: Sequence[str]) -> Iterator[Queues]:
    """Samples the queues within the context."""
    queues, is_over = Queues({vendor: [] for vendor in vendors}), threading.Event()
    before = _compiled(farm)

    def watch() -> None:
        while not is_over.wait(_SCRAPE_EVERY_S):
            for vendor, number in _waiting(farm, vendors).items():
                queues.waiting[vendor].append(number)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield queues
    finally:
        is_over.set()
        thread.join()
        queues.compiled = _compiled(farm) - before


def _waiting(farm: Farm, vendors: Sequence[str]) -> dict[str, int]:
    """The warm-up jobs that wait for each vendor, as the edge's metrics state."""
    samples = scrape(farm.status()["children"]["codegen"]["metrics"])
    return {
        vendor: int(value(samples, "kernelfarm_queued_jobs", vendor=vendor, priority="warm_up"))
        for vendor in vendors
    }


def _compiled(farm: Farm) -> int:
    """The kernels that the workers have compiled so far."""
    return sum(
        farm.log(name).count('"kernel_built"')
        for name in farm.status()["children"]
        if name.startswith("worker-")
    )


def table(result: WarmingResult) -> Iterator[str]:
    """Markdown: the latencies, then the state of the queues."""
    yield (
        "| call | idle p50, p99 ms (calls) | beside the job p50, p99 ms (calls) |"
        " p99 ratio | limit | failed | holds |"
    )
    yield "|---|---:|---:|---:|---:|---|---|"
    for row in result.rows:
        failures = ", ".join(f"{n} {name}" for name, n in row.failures.items()) or "none"
        yield (
            f"| {row.kind} | {1e3 * row.idle_p50_s:.1f}, {1e3 * row.idle_p99_s:.1f}"
            f" ({row.idle_calls}) | {1e3 * row.p50_s:.1f}, {1e3 * row.p99_s:.1f} ({row.calls}) |"
            f" {row.ratio:.2f} | {row.limit} | {failures} | {'yes' if row.holds else 'NO'} |"
        )
    yield ""
    for vendor, seen in result.queues.waiting.items():
        least, middle = (min(seen), statistics.median(seen)) if seen else (0, 0)
        yield f"Warm-up jobs that waited for {vendor}: least {least}, median {middle:.0f}."
    full = "were" if result.queues.were_full else "were NOT"
    yield (
        f"The queues {full} full; {result.queues.compiled} kernels were compiled meanwhile, with"
        f" those of interactive requests. Load before: {result.load:.1f}."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--idle-seconds", type=float, default=120.0)
    parser.add_argument("--vendors", nargs="+", choices=tuple(TARGETS), default=tuple(TARGETS))
    parser.add_argument("--workers", type=int, default=2, help="processes for each vendor")
    parser.add_argument("--models", type=int, default=24, help="models of the warming job")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the farm ends too
    with tempfile.TemporaryDirectory(prefix="kernelfarm-warming-") as folder:
        measured = MeasuredFarm(tuple(options.vendors), options.workers, options.models)
        result = measure_warming(options.seconds, options.idle_seconds, Path(folder), measured)
    print("\n".join(table(result)))
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=2))
    return 0 if result.holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
