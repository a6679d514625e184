"""Cold start: the first call of a compiled model on the CPU, compared with Inductor.

Every measurement is a new process; the arms alternate. kernelfarm: the farm runs with an empty
cache. Inductor: its caches are empty. Prints medians, the ratio, and the bar.

Usage: python -m benchmarks.cold_start [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from examples.farm import running_farm

MODELS = ("reference", "h", "llama")
BAR = 5.0
"""The first call must be this many times as fast as Inductor's."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [measure(name, options.rounds) for name in options.models]
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["ratio"] >= BAR for row in rows) else 1


def measure(name: str, rounds: int) -> dict[str, object]:
    arms: dict[str, list[dict[str, float]]] = {"kernelfarm": [], "inductor": []}
    for _ in range(rounds):
        with running_farm(vendors="cpu") as farm:
            environment = {"KERNELFARM_ENDPOINT": farm.endpoint}
            arms["kernelfarm"].append(first_call("kernelfarm", name, **environment))
        with tempfile.TemporaryDirectory() as cache:
            arms["inductor"].append(first_call("inductor", name, TORCHINDUCTOR_CACHE_DIR=cache))
    medians = {
        arm: statistics.median(run["first_call_s"] for run in runs) for arm, runs in arms.items()
    }
    whole = {
        arm: statistics.median(run["since_start_s"] for run in runs) for arm, runs in arms.items()
    }
    ratios = [
        peer["first_call_s"] / own["first_call_s"]
        for own, peer in zip(arms["kernelfarm"], arms["inductor"], strict=True)
    ]
    return {
        "model": name,
        "first_call_s": medians,
        "since_start_s": whole,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def first_call(backend: str, name: str, **environment: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks._first_call", backend, name, str(time.time())]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{backend} on {name} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def print_table(rows: list[dict]) -> None:
    print(f"{'model':<12}{'kernelfarm s':>14}{'inductor s':>12}{'ratio':>8}", end="")
    print(f"{'from process start: kernelfarm':>34}{'inductor':>10}")
    for row in rows:
        call, whole = row["first_call_s"], row["since_start_s"]
        print(
            f"{row['model']:<12}{call['kernelfarm']:>14.2f}{call['inductor']:>12.2f}"
            f"{row['ratio']:>7.1f}x{whole['kernelfarm']:>34.2f}{whole['inductor']:>10.2f}"
        )
    print(f"bar: {BAR:.0f} times faster on the first call; no bar for the time from process start")


if __name__ == "__main__":
    sys.exit(main())
