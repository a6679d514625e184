"""Programs prepared where there is no GPU, and run where there is no farm.

With a CPU's target the same is rehearsed on the CPU.

Usage: python -m tests.gpu build FOLDER [--kind programs|operators] [--only TEXT ...] [--target T]
       python -m tests.gpu run FOLDER [--only TEXT ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernelfarm.client import counters
from kernelfarm.ir.graph_ir import Graph
from tests.gpu.captures import captured_of
from tests.gpu.case import Case
from tests.gpu.operators import Groups, chosen_groups, operator_cases
from tests.gpu.run_case import problem_of
from tests.gpu.table import all_cases
from tests.support.prepared_folder import canonical_text, offline, prepare

OPTIONS = {"mode": "strict", "timeout_s": 2.0}
REPORTED = 20
"""A run says after each so many cases how many ran."""
Outcome = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=("programs", "operators"), help="(build) one half")
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="cases whose names hold any of these"
    )
    parser.add_argument("--json", type=Path, help="(run) where to write what became of each case")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    return (build if options.command == "build" else run)(options)


def build(options: argparse.Namespace) -> int:
    """Fills the folder; 1 if a case did not compile."""
    groups = [] if options.kind == "programs" else chosen_groups()
    named = _captured(groups, options)
    options.folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare(named, options.folder, options.target, {"groups": groups})
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure[:600]}")
    print(f"{len(prepared.graphs)} cases, {len(prepared.failures)} failed")
    return 1 if prepared.failures else 0


def _captured(groups: Groups, options: argparse.Namespace) -> Iterator[tuple[str, list[Graph]]]:
    cases = operator_cases(groups) if options.kind == "operators" else all_cases(groups)
    for case in cases:
        if not any(text in case.name for text in options.only):
            continue
        try:
            found = captured_of(case, torch.device("cpu"), options.target)
            yield case.name, [each.graph for each in found]
        except Exception as error:  # the other cases can do without it
            print(f"{case.name}: {type(error).__name__}: {str(error)[:600]}", flush=True)


def run(options: argparse.Namespace) -> int:
    """Runs every case of a prepared folder on this machine's GPU; 1 if one is not right."""
    found: dict[str, Outcome] = {}
    with offline(options.folder) as prepared:
        device = torch.device("cpu" if prepared.target.startswith("cpu") else "cuda:0")
        for case in all_cases(prepared.notes["groups"]):
            is_wanted = any(text in case.name for text in options.only)
            if not is_wanted or case.name not in prepared.graphs:
                continue
            began = time.perf_counter()
            outcome = outcome_of(case, device, prepared.target, prepared.graphs[case.name])
            found[case.name] = outcome | {"seconds": round(time.perf_counter() - began, 2)}
            if outcome["outcome"] != "right":
                print(case.name, "|", outcome["outcome"], "|", outcome["why"][:400], flush=True)
            if len(found) % REPORTED == 0:  # a run may be cut off
                print(f"{len(found)} of {len(prepared.graphs)} cases ran", flush=True)
    counts = Counter(outcome["outcome"] for outcome in found.values())
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(where, torch.__version__, dict(counts), counters.snapshot())
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0 if set(counts) == {"right"} else 1


def outcome_of(case: Case, device: torch.device, target: str, graphs: list[str]) -> Outcome:
    """`right`, `wrong`, `failed`, or `other key` where what is captured here is another graph."""
    try:
        problem = problem_of(case, device, OPTIONS)
        return {"outcome": "wrong" if problem else "right", "why": problem}
    except Exception as error:  # one case's failure is a row, not the end of the table
        why = "".join(traceback.format_exception_only(error)).strip()[-1500:]
    try:
        texts = [canonical_text(each.graph) for each in captured_of(case, device, target)]
    except Exception as error:
        return {"outcome": "failed", "why": f"{why}; capture: {type(error).__name__}: {error}"}
    if texts == graphs:
        return {"outcome": "failed", "why": why}
    return {"outcome": "other key", "why": why, "here": texts, "there": graphs}


if __name__ == "__main__":
    sys.exit(main())
