"""CUDA graphs (`reduce-overhead`) on a GPU, with programs prepared where there is none.

Each scenario must give eager's results, both with launched kernels and with recorded ones. The
latter must be recorded, or state the expected reason. They run twice: in a new folder the first
time traces, and the second time finds the traces on disk.

Usage: python -m tests.gpu.recorded build FOLDER [--target T]
       python -m tests.gpu.recorded run FOLDER [--only TEXT ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
from tests.gpu.recorded_scenarios import Scenario, all_scenarios
from tests.support.prepared_folder import canonical_text, offline, prepare
from tests.support.traced_graphs import recording

REPLACED = "runner.programs_replaced"
TIMEOUT_S = 30.0
PREFIX = "cuda_graphs."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--json", type=Path, help="(run) where to write what became of each")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    return (build if options.command == "build" else run)(options)


def build(options: argparse.Namespace) -> int:
    """Fills the folder; 1 if a program did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare(_captured(options.only), options.folder, options.target, {})
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure[:600]}")
    print(f"{len(prepared.graphs)} scenarios, {len(prepared.failures)} failed")
    return 1 if prepared.failures else 0


def _captured(only: list[str]) -> Iterator[tuple[str, list[Graph]]]:
    for scenario in _chosen(only):
        yield scenario.name, graphs_of(scenario, torch.device("cpu"))


def _chosen(only: list[str]) -> Iterator[Scenario]:
    return (s for s in all_scenarios() if any(text in s.name for text in only))


def graphs_of(scenario: Scenario, device: torch.device) -> list[Graph]:
    """The graphs of a scenario, which runs as in eager."""
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    torch.manual_seed(0)
    scenario.run(_Capturing(found), device)
    return [captured.graph for captured in found]


def run(options: argparse.Namespace) -> int:
    """Runs every scenario on this machine's GPU; 1 if one is not right."""
    found: dict[str, dict[str, Any]] = {}
    with offline(options.folder) as prepared:
        device = torch.device("cpu" if prepared.target.startswith("cpu") else "cuda:0")
        for way in _ways():
            for scenario in _chosen(options.only):
                outcome = outcome_of(scenario, way, device, prepared.graphs[scenario.name])
                name = f"{scenario.name}, {way.name}"
                found[name] = outcome
                print(f"{name:<55}", outcome["outcome"], outcome["counted"], flush=True)
                if outcome["outcome"] != "right":
                    print(outcome["why"][-3000:], flush=True)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    right = sum(outcome["outcome"] == "right" for outcome in found.values())
    print(where, torch.__version__, f"{right} of {len(found)} scenarios are right")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0 if right == len(found) else 1


def _ways() -> Iterator[Running]:
    yield Running(is_recorded=True)
    yield Running(is_recorded=True, name="again")
    yield Running(is_recorded=False)


def outcome_of(
    scenario: Scenario, way: Running, device: torch.device, graphs: list[str]
) -> dict[str, Any]:
    """`right`, `wrong`, `failed`, or `not as expected` by the counters."""
    why, outcome = "", "right"
    try:
        why = problem_of_recording(scenario, way, device)
        outcome = "not as expected" if why else "right"
    except AssertionError:
        outcome, why = "wrong", traceback.format_exc()
    except Exception:  # one scenario's failure is a row, not the end of the table
        outcome, why = "failed", traceback.format_exc()
    counted = _counted()
    if outcome in ("wrong", "failed"):
        here = [canonical_text(graph) for graph in graphs_of(scenario, device)]
        why += "" if here == graphs else "\nother graphs than those that were prepared"
    return {"outcome": outcome, "why": why, "counted": counted}


def problem_of_recording(scenario: Scenario, way: Running, device: torch.device) -> str:
    """What is wrong with the counters after a scenario; empty if they are as expected.

    Raises:
        AssertionError: a result is not eager's.
    """
    torch._dynamo.reset()
    counters.reset()
    scenario.run(way, device)
    return _recording_problem(scenario, device, _counted()) if way.is_recorded else ""


def _counted() -> dict[str, int]:
    found = counters.snapshot()
    return {name.removeprefix(PREFIX): n for name, n in found.items() if name.startswith(PREFIX)}


class _Capturing:
    """Compiles for a scenario whose graphs are captured."""

    def __init__(self, found: list[CapturedGraph]) -> None:
        self._backend = recording(found)

    def __call__(self, function: Any, *, mode: str = "", **more: Any) -> Any:
        """The function, which runs eager."""
        return torch.compile(function, backend=self._backend, **more)

    def settled(self, programs: int) -> None:
        """Returns: nothing is replaced."""


class Running:
    """Compiles for a scenario that runs the programs."""

    def __init__(self, *, is_recorded: bool, name: str = "") -> None:
        self.is_recorded = is_recorded
        self.name = name or ("recorded" if is_recorded else "launched")

    def __call__(self, function: Any, *, mode: str = "strict", **more: Any) -> Any:
        """The compiled function."""
        options = {"timeout_s": 5.0, "cuda_graphs": self.is_recorded, "mode": mode}
        return torch.compile(function, backend="kernelfarm", options=options, **more)

    def settled(self, programs: int) -> None:
        """Waits for background threads."""
        ends_s = time.monotonic() + TIMEOUT_S
        while counters.snapshot().get(REPLACED, 0) < programs:
            assert time.monotonic() < ends_s, f"not {programs} programs within {TIMEOUT_S} s"
            time.sleep(0.02)


def _recording_problem(scenario: Scenario, device: torch.device, counted: dict[str, int]) -> str:
    """What is wrong with the counters; empty if they are as expected."""
    reason = "device" if device.type == "cpu" else scenario.reason
    reasons = {name.removeprefix("not_recorded.") for name in counted if "not_rec" in name}
    expected = {reason} if reason else set()
    is_by_chance = scenario.reason == "forward" and not reasons
    if reasons != expected and not is_by_chance:
        return f"not recorded because of {sorted(reasons)}; expected {sorted(expected)}"
    recorded = counted.get("recorded", 0)
    if (not reason or reason == "forward") and recorded < scenario.least:
        return f"{recorded} recordings; expected {scenario.least} or more"
    return ""


if __name__ == "__main__":
    sys.exit(main())
