"""Launches of one forward pass on the CPU: kernelfarm's plans compared with Inductor's wrappers.

One rule counts both: own kernels, plus every extern step that is not a contraction, attention or
convolution. Inductor's kernels are the `cpp_fused_*` calls in its wrapper's `call`; it runs in a
new process with empty caches.

Usage: python -m benchmarks.launches [--models NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from examples.farm import running_farm
from examples.real_inputs import WHOLE_GRAPHS
from tests.support.launches import Launches, inductor_launches, launches_of_plans, programs_of

MODEL_WITH_BAR = "llama"
"""For this model kernelfarm may launch no more than Inductor; the others are for information."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=list(WHOLE_GRAPHS), default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with running_farm(vendors="cpu") as farm:
        for name in options.models or WHOLE_GRAPHS:
            ours = launches_of_plans(programs_of(WHOLE_GRAPHS[name](), farm.endpoint))
            rows.append({"model": name, "kernelfarm": ours, "inductor": inductor_launches(name)})
            print_row(name, ours, rows[-1]["inductor"])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2, default=asdict) + "\n")
    print(f"bar: no more launches than Inductor for {MODEL_WITH_BAR}")
    judged = [row for row in rows if row["model"] == MODEL_WITH_BAR]
    return 0 if all(row["kernelfarm"].total <= row["inductor"].total for row in judged) else 1


def print_row(name: str, ours: Launches, theirs: Launches) -> None:
    for arm, counted in (("kernelfarm", ours), ("inductor", theirs)):
        externs = {**counted.others, **counted.contractions}
        listed = ", ".join(f"{count} {op}" for op, count in sorted(externs.items())) or "none"
        print(
            f"{name:<10} {arm:<11} launches {counted.total:>3}  own {counted.kernels:>3}"
            f"  distinct {counted.distinct:>3}  externs: {listed}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
