"""Warm start: a new process by a warm farm, or with a warm disk, beside Inductor with warm caches.

Every measurement is a fresh process, after one of the same arm that was cold; the arms alternate.
    disk      programs and traces are on this machine's disk; the farm runs and is asked what was
              invalidated
    farm      the farm has the program; this machine has nothing
    inductor  its FX graph cache and AOTAutogradCache hold the graph

Prints medians by phase (see `_warm_call`), ratios of Inductor's time to ours, their geomean, and
the bar. Seconds of the process's own processors stand beside those of the clock: on a busy machine
they tell more.

Usage: python -m benchmarks.warm_start [--rounds N] [--models NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.farm import running_farm
from examples.model_zoo import MODELS as ZOO

MODELS = ("reference", "h", *ZOO)
ARMS = ("disk", "farm", "inductor")
PHASES = ("import", "dynamo", "trace", "program", "load", "backend", "run", "first")
CLOCKS = ("wall", "processor")
BAR = 2.0
"""kernelfarm's first call has to be this many times faster (geomean, warm disk)."""

Run = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with running_farm(vendors="cpu") as endpoint:
        for name in options.models:
            rows.append(measure(name, options.rounds, endpoint))
            print_row(rows[-1])
            if options.json:
                options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if print_geomeans(rows) >= BAR else 1


def measure(name: str, rounds: int, endpoint: str) -> dict[str, Any]:
    """One model: a cold process of each arm, then `rounds` warm ones that alternate."""
    with tempfile.TemporaryDirectory(prefix="kernelfarm-warm-") as folder:
        disk = {"KERNELFARM_ENDPOINT": endpoint, "KERNELFARM_DISK_CACHE_DIR": f"{folder}/disk"}
        farm = {"KERNELFARM_ENDPOINT": endpoint, "KERNELFARM_DISK_CACHE_BYTES": "0"}
        inductor = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        environments = dict(zip(ARMS, (disk, farm, inductor), strict=True))
        cold = {arm: first_call(arm, name, environments[arm]) for arm in ("disk", "inductor")}
        warm: dict[str, list[Run]] = {arm: [] for arm in ARMS}
        for _ in range(rounds):
            for arm in ARMS:
                warm[arm].append(first_call(arm, name, environments[arm]))
    medians = {arm: _medians(runs) for arm, runs in warm.items()}
    return {
        "model": name,
        "cold": {arm: run["phases"]["first"] for arm, run in cold.items()},
        "warm": medians,
        "ratios": {
            arm: {
                clock: medians["inductor"]["first"][i] / medians[arm]["first"][i]
                for i, clock in enumerate(CLOCKS)
            }
            for arm in ("disk", "farm")
        },
        "errors": {arm: runs[-1]["error"] for arm, runs in warm.items()},
        "counters": {arm: runs[-1]["counters"] for arm, runs in warm.items()},
    }


def first_call(arm: str, name: str, environment: dict[str, str]) -> Run:
    backend = "inductor" if arm == "inductor" else "kernelfarm"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._warm_call", backend, name],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{arm} on {name} failed:\n{done.stderr[-4000:]}")
    found: Run = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _medians(runs: list[Run]) -> dict[str, list[float]]:
    zero = [0.0, 0.0]
    return {
        phase: [
            statistics.median(run["phases"].get(phase, zero)[i] for run in runs) for i in (0, 1)
        ]
        for phase in PHASES
    }


def print_row(row: dict[str, Any]) -> None:
    for arm in ARMS:
        phases = row["warm"][arm]
        parts = "  ".join(f"{p} {phases[p][0]:.2f}/{phases[p][1]:.2f}" for p in PHASES)
        print(f"{row['model']:<14}{arm:<10}{parts}", flush=True)


def print_geomeans(rows: list[dict[str, Any]]) -> float:
    """Prints them; the one that the bar is for."""
    print("phases in seconds: by the clock / of the process's processors")
    found = {}
    for arm in ("disk", "farm"):
        for clock in CLOCKS:
            ratios = [row["ratios"][arm][clock] for row in rows]
            found[arm, clock] = math.exp(statistics.fmean(map(math.log, ratios)))
            print(f"warm {arm}, {clock}: {found[arm, clock]:.2f} times Inductor's speed (geomean)")
    print(f"bar: {BAR:.0f} times, warm disk, by the clock")
    return found["disk", "wall"]


if __name__ == "__main__":
    sys.exit(main())
