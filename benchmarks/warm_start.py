"""Warm start: a new process with a warm farm or disk, compared with Inductor with warm caches.

Every measurement is a new process, after a cold one of the same arm; the arms alternate.
    disk              programs and traces are on this machine's disk; the farm runs and reports
                      invalidations
    farm              this machine's disk is empty; the farm has the program, and the trace that
                      another client published; its keys are pinned
    package           `disk`, with a package of `aot_compile`: nothing is traced
    package-farm      this machine's disk is empty; the farm has the package that another client
                      published (`kernelfarm.packaged`), with its program and kernels
    package-disk      the same, after an earlier process: this machine's disk has all of it
    inductor          its FX graph cache and AOTAutogradCache hold the graph
    inductor-package  its own package of `aot_compile`

Every arm has three clocks, all of which end with the first result:
    start     from the start of the process
    call      from the first call, in a process that has imported PyTorch and the model's library
    loaded    from the first call, after every module that the arm imports late has been imported

Prints medians, ratios of Inductor's time to ours, and their geomeans, in wall time and in processor
time of the process, which other load changes less. `--real` takes models with the depth and width
of real ones instead of small ones; a model takes some minutes then. `--models` also takes those of
32 layers. Our sources are compiled to bytecode first, as by an installer. Models in the file of
`--json` are not measured again; `--markdown` writes the tables of all models in it.

`--arms` measures some arms only, always with `inductor`, so that a run ends in two minutes.

Usage: python -m benchmarks.warm_start [--real] [--rounds N] [--models NAME ...] [--arms NAME ...]
       [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from examples.farm import StartedFarm, running_farm
from examples.full_models import FULL
from examples.model_zoo import MODELS as ZOO
from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY

SMALL = ("reference", "h", *ZOO)
OURS = ("disk", "farm", "package", "package-farm", "package-disk")
PACKAGED = ("package-farm", "package-disk")
PEERS = ("inductor", "inductor-package")
ARMS = (*OURS, *PEERS)
CLOCKS = ("start", "call", "loaded")
PHASES = ("import", "build", "dynamo", "trace", "ask", "program", "load", "backend", "run")
UNITS = ("wall", "processor")
TIMEOUT_S = 400.0
"""For one process: Inductor's first one compiles C++ for minutes on a busy machine."""

Run = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    is_kept = options.json is not None and options.json.exists()
    rows: list[dict[str, Any]] = json.loads(options.json.read_text()) if is_kept else []
    models = options.models or (FULL if options.real else SMALL)
    missing = [name for name in models if name not in {row["model"] for row in rows}]
    arms = [arm for arm in ARMS if arm in {*options.arms, "inductor"}]
    print(machine())
    for package in ("kernelfarm", "examples", "benchmarks"):
        compileall.compile_dir(package, quiet=1)
    if missing:
        with running_farm("cpu") as farm:
            for name in missing:
                rows.append(measure(name, arms, options.rounds, farm))
                print_row(rows[-1])
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    print_geomeans(rows)
    return 0


def measure(name: str, arms: Sequence[str], rounds: int, farm: StartedFarm) -> dict[str, Any]:
    """One model: a cold process of each arm, then `rounds` alternating warm ones.

    Raises:
        RuntimeError: a process failed, or a process was not warm as expected.
    """
    with tempfile.TemporaryDirectory(prefix="kernelfarm-warm-") as folder:
        measured = _Arms(name, Path(folder), farm)
        # `disk` fills the farm for the arm `farm`.
        filled = {"disk", *arms} - {"farm"} if "farm" in arms else set(arms)
        cold = {arm: measured.cold(arm) for arm in ARMS if arm in filled}
        warm: dict[str, list[Run]] = {arm: [] for arm in arms}
        for number in range(rounds):
            for arm in arms:
                warm[arm].append(measured.warm(arm, number))
    return {
        "model": name,
        "rounds": rounds,
        "cold": {arm: run["clocks"] for arm, run in cold.items()},
        "warm": {arm: _medians(runs) for arm, runs in warm.items()},
        "ratios": {
            arm: {clock: _ratios(warm, arm, clock) for clock in CLOCKS}
            for arm in arms
            if arm != "inductor"
        },
        "package_bytes": {arm: warm[arm][0]["package_bytes"] for arm in arms},
        "errors": {arm: runs[-1]["error"] for arm, runs in warm.items()},
        "graphs": next(iter(cold.values()))["graphs"],
        "traced": next(iter(cold.values()))["traced"],
    }


class _Arms:
    """Runs processes of all arms for one model, with caches in one folder."""

    def __init__(self, name: str, folder: Path, farm: StartedFarm) -> None:
        self._name = name
        self._folder = folder
        self._ours = {
            "KERNELFARM_ENDPOINT": farm.endpoint,
            "KERNELFARM_MODE": "strict",
            "KERNELFARM_TRUSTED_KEYS_FILE": str(farm.keys / PUBLIC_KEYS),
            "KERNELFARM_DISK_CACHE_DIR": f"{folder}/disk",
        }
        self._publishes = {"KERNELFARM_TRACE_KEY_FILE": str(farm.keys / TRACE_KEY)}
        self._inductor = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}

    def cold(self, arm: str) -> Run:
        """The first process of an arm."""
        stated = self._inductor if arm in PEERS else self._stated(arm, "cold") | self._publishes
        found = self._process(arm, stated, self._folder / f"{arm}.cold")
        if arm == "package-disk":  # a publisher stores its package at the farm alone
            self._process(arm, self._stated(arm, "cold"), self._folder / f"{arm}.fill")
        return found

    def warm(self, arm: str, number: int) -> Run:
        """A plain process and one with all modules loaded: their clocks and phases."""
        modules = self._folder / f"{arm}.{number}"
        found = self._process(arm, self._stated(arm, f"{number}-plain"), modules)
        _check_warm(arm, self._name, found)
        loaded = self._process(arm, self._stated(arm, f"{number}-loaded"), modules)
        _check_warm(arm, self._name, loaded)
        return loaded | {"clocks": found["clocks"] | loaded["clocks"]}

    def _stated(self, arm: str, unused: str) -> dict[str, str]:
        if arm in PEERS:
            return self._inductor
        if arm in ("disk", "package"):
            return self._ours
        disk = arm if arm == "package-disk" else f"empty-{arm}-{unused}"
        own = {"KERNELFARM_DISK_CACHE_DIR": f"{self._folder}/{disk}"}
        trusted = {"KERNELFARM_PACKAGES": "trusted"} if arm in PACKAGED else {}
        return self._ours | own | trusted

    def _process(self, arm: str, environment: dict[str, str], modules: Path) -> Run:
        backend = "inductor" if arm in PEERS else "kernelfarm"
        command = [sys.executable, "-m", "benchmarks._warm_call", backend, self._name]
        file = "farm" if arm in PACKAGED else str(self._folder / f"{backend}.package")
        package = [file] if "package" in arm else []
        done = subprocess.run(
            [*command, str(time.time()), str(modules), *package],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(f"{arm} on {self._name} failed:\n{done.stderr[-4000:]}")
        found: Run = json.loads(done.stdout.strip().splitlines()[-1])
        return found


def _ratios(warm: dict[str, list[Run]], arm: str, clock: str) -> list[float]:
    """Inductor's time / ours by wall clock and processor time: medians over rounds.

    Each round compares successive processes.
    """
    pairs = list(zip(warm["inductor"], warm[arm], strict=True))
    return [
        statistics.median(
            theirs["clocks"][clock][unit] / run["clocks"][clock][unit] for theirs, run in pairs
        )
        for unit in range(len(UNITS))
    ]


def _check_warm(arm: str, name: str, run: Run) -> None:
    counters = run["counters"]
    hits = {
        "disk": counters.get("warm.hits", 0),
        "farm": counters.get("warm.farm.hits", 0) + counters.get("warm.memory.hits", 0),
        "package": counters.get("disk.hits", 0) - 1,
        "package-farm": counters.get("packages.farm.hits", 0) - 1,
        "package-disk": counters.get("packages.disk.hits", 0) - 1,
        "inductor": counters.get("autograd_cache_hit", 0),
        "inductor-package": 0,
    }
    # A package is one hit in place of all graphs, of which none is traced.
    if hits[arm] != run["graphs"] or ("package" in arm and run["traced"]):
        raise RuntimeError(f"{arm} on {name}: {hits[arm]} of {run['graphs']} graphs: {counters}")


def _medians(runs: list[Run]) -> dict[str, list[float]]:
    """The medians of all clocks and phases by name."""
    zero = [0.0, 0.0]
    times = [run["phases"] | run["clocks"] for run in runs]
    return {
        name: [statistics.median(found.get(name, zero)[i] for found in times) for i in (0, 1)]
        for name in (*CLOCKS, *PHASES)
    }


def print_row(row: dict[str, Any]) -> None:
    for arm, times in row["warm"].items():
        parts = "  ".join(f"{p} {times[p][0]:.2f}/{times[p][1]:.2f}" for p in (*CLOCKS, *PHASES))
        print(f"{row['model']:<14}{arm:<10}{parts}", flush=True)
    for arm, ratios in row["ratios"].items():
        parts = "  ".join(f"{clock} {wall:.2f}/{own:.2f}" for clock, (wall, own) in ratios.items())
        print(f"{row['model']:<14}{'ratios of ' + arm:<16}{parts}", flush=True)


def geomean(rows: Sequence[dict[str, Any]], arm: str, clock: str, unit: int) -> float:
    """The geometric mean of the models' ratios."""
    return math.exp(statistics.fmean(math.log(row["ratios"][arm][clock][unit]) for row in rows))


def _compared(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The arms that every model has, without Inductor's."""
    return [arm for arm in ARMS if all(arm in row["ratios"] for row in rows)]


def print_geomeans(rows: Sequence[dict[str, Any]]) -> None:
    print("seconds: by the clock / of the process's processors")
    for arm in _compared(rows):
        for clock in CLOCKS:
            means = [geomean(rows, arm, clock, unit) for unit in range(len(UNITS))]
            print(
                f"{arm}, clock `{clock}`: {means[0]:.2f} times Inductor's speed by wall time,"
                f" {means[1]:.2f} by processor time (geomean)"
            )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The ratios of all models, and the seconds of each clock and phase."""
    arms = [(arm, clock) for arm in _compared(rows) for clock in CLOCKS]
    titles = " | ".join(f"{arm}: {clock}" for arm, clock in arms)
    lines = [f"| model | rounds | {titles} |", "|---|---:|" + "---:|" * len(arms)]
    for row in rows:
        ratios = [row["ratios"][arm][clock][0] for arm, clock in arms]
        cells = " | ".join(f"{ratio:.1f}" for ratio in ratios)
        lines.append(f"| {row['model']} | {row['rounds']} | {cells} |")
    for unit, name in enumerate(UNITS):
        means = [geomean(rows, arm, clock, unit) for arm, clock in arms]
        cells = " | ".join(f"**{m:.2f}**" for m in means)
        lines.append(f"| **geomean, {name} time** | | {cells} |")
    shown = [*CLOCKS, *(phase for phase in PHASES if phase != "backend")]
    lines += ["", f"| model | from | {' | '.join(shown)} |", "|---|---|" + "---:|" * len(shown)]
    for row in rows:
        for arm, times in row["warm"].items():
            of_backend = {**times, "trace": times["backend"]} if arm in PEERS else times
            cells = " | ".join(f"{of_backend[name][0]:.2f}" for name in shown)
            lines.append(f"| {row['model']} | {arm} | {cells} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
