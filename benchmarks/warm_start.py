"""Warm start: a new process with a warm farm or disk, compared with Inductor with warm caches.

Every measurement is a new process, after a cold one of the same arm; the arms alternate.
    disk      programs and traces are on this machine's disk; the farm runs and reports
    invalidations farm      this machine's disk is empty; the farm has the program, and the trace
    that another
              client published; its keys are pinned
    inductor  its FX graph cache and AOTAutogradCache hold the graph

Prints medians by phase (see `_warm_call`), ratios of Inductor's time to ours, their geomean, and
the bar, in wall time and in processor time of the process, which other load changes less. Models in
the file of `--json` are not measured again; `--markdown` writes the tables of all models in it.

Usage: python -m benchmarks.warm_start [--rounds N] [--models NAME ...] [--json FILE]
       [--markdown FILE]
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.farm import StartedFarm, running_farm
from examples.model_zoo import MODELS as ZOO
from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY

MODELS = ("reference", "h", *ZOO)
ARMS = ("disk", "farm", "inductor")
PHASES = ("import", "dynamo", "trace", "ask", "program", "load", "backend", "run", "first")
CLOCKS = ("wall", "processor")
BAR = 2.0
"""The first call must be so many times as fast (geomean, warm farm, empty disk)."""
TIMEOUT_S = 240.0
"""For one process: Inductor's first one compiles C++ for a minute on a busy machine."""

Run = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    is_kept = options.json is not None and options.json.exists()
    rows: list[dict[str, Any]] = json.loads(options.json.read_text()) if is_kept else []
    missing = [name for name in options.models if name not in {row["model"] for row in rows}]
    if missing:
        with running_farm("cpu") as farm:
            for name in missing:
                rows.append(measure(name, options.rounds, farm))
                print_row(rows[-1])
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    return 0 if print_geomeans(rows) >= BAR else 1


def measure(name: str, rounds: int, farm: StartedFarm) -> dict[str, Any]:
    """One model: a cold process of each arm, then `rounds` alternating warm ones.

    Raises:
        RuntimeError: a process failed, or a process was not warm as expected.
    """
    with tempfile.TemporaryDirectory(prefix="kernelfarm-warm-") as folder:
        ours = {
            "KERNELFARM_ENDPOINT": farm.endpoint,
            "KERNELFARM_TRUSTED_KEYS_FILE": str(farm.keys / PUBLIC_KEYS),
            "KERNELFARM_DISK_CACHE_DIR": f"{folder}/disk",
        }
        inductor = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        publishes = {"KERNELFARM_TRACE_KEY_FILE": str(farm.keys / TRACE_KEY)}
        cold = {
            "disk": first_call("disk", name, ours | publishes),
            "inductor": first_call("inductor", name, inductor),
        }
        warm: dict[str, list[Run]] = {arm: [] for arm in ARMS}
        for number in range(rounds):
            empty = {"KERNELFARM_DISK_CACHE_DIR": f"{folder}/empty-{number}"}
            for arm, stated in (("disk", ours), ("farm", ours | empty), ("inductor", inductor)):
                warm[arm].append(first_call(arm, name, stated))
                _check_warm(arm, name, warm[arm][-1])
    medians = {arm: _medians(runs) for arm, runs in warm.items()}
    return {
        "model": name,
        "rounds": rounds,
        "cold": {arm: run["phases"]["first"] for arm, run in cold.items()},
        "warm": medians,
        "ratios": {arm: [_ratio(warm, arm, clock) for clock in (0, 1)] for arm in ("disk", "farm")},
        "errors": {arm: runs[-1]["error"] for arm, runs in warm.items()},
        "graphs": cold["disk"]["graphs"],
        "traced": cold["disk"]["traced"],
    }


def _ratio(warm: dict[str, list[Run]], arm: str, clock: int) -> float:
    """Inductor's time / ours, the median over rounds: each round compares successive processes."""
    pairs = zip(warm["inductor"], warm[arm], strict=True)
    return statistics.median(
        theirs["phases"]["first"][clock] / run["phases"]["first"][clock] for theirs, run in pairs
    )


def _check_warm(arm: str, name: str, run: Run) -> None:
    counters = run["counters"]
    hits = {
        "disk": counters.get("warm.hits", 0),
        "farm": counters.get("warm.farm.hits", 0) + counters.get("warm.memory.hits", 0),
        "inductor": counters.get("autograd_cache_hit", 0),
    }
    if hits[arm] != run["graphs"]:
        raise RuntimeError(f"{arm} on {name}: {hits[arm]} of {run['graphs']} graphs: {counters}")


def first_call(arm: str, name: str, environment: dict[str, str]) -> Run:
    backend = "inductor" if arm == "inductor" else "kernelfarm"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._warm_call", backend, name],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
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
    ratios = "  ".join(f"{arm} {wall:.2f}/{own:.2f}" for arm, (wall, own) in row["ratios"].items())
    print(f"{row['model']:<14}{'ratios':<10}{ratios}", flush=True)


def geomean(rows: Sequence[dict[str, Any]], arm: str, clock: int) -> float:
    """The geometric mean of the models' ratios."""
    return math.exp(statistics.fmean(math.log(row["ratios"][arm][clock]) for row in rows))


def print_geomeans(rows: Sequence[dict[str, Any]]) -> float:
    """Prints all geomeans; returns the one with a bar."""
    print("phases in seconds: by the clock / of the process's processors")
    for arm in ("disk", "farm"):
        for number, clock in enumerate(CLOCKS):
            found = geomean(rows, arm, number)
            print(f"warm {arm}, {clock}: {found:.2f} times Inductor's speed (geomean)")
    print(f"bar: {BAR:.0f} times, warm farm and empty disk, by the clock")
    return geomean(rows, "farm", 0)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The ratios of all models, and the seconds of each phase."""
    lines = [
        "| model | rounds | disk | farm | disk, processor | farm, processor |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        ratios = [row["ratios"][arm][clock] for clock in (0, 1) for arm in ("disk", "farm")]
        cells = " | ".join(f"{ratio:.1f}" for ratio in ratios)
        lines.append(f"| {row['model']} | {row['rounds']} | {cells} |")
    means = [geomean(rows, arm, clock) for clock in (0, 1) for arm in ("disk", "farm")]
    lines.append("| **geomean** | | " + " | ".join(f"**{m:.2f}**" for m in means) + " |")
    shown = [phase for phase in PHASES if phase not in ("import", "backend")]
    lines += ["", f"| model | from | {' | '.join(shown)} |", "|---|---|" + "---:|" * len(shown)]
    for row in rows:
        for arm in ARMS:
            phases = row["warm"][arm]
            of_backend = {**phases, "trace": phases["backend"]} if arm == "inductor" else phases
            cells = " | ".join(f"{of_backend[phase][0]:.2f}" for phase in shown)
            lines.append(f"| {row['model']} | {arm} | {cells} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
