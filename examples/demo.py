"""A demonstration of the farm, run by `make demo`.

It starts a whole farm on loopback, compiles real models for every vendor, checks the numbers on the
CPU, compiles everything a second time from the cache, prints tables, and stops the farm.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import kernelfarm
from examples.farm import running_farm
from examples.real_inputs import WHOLE_GRAPHS, RealInput, f, g
from kernelfarm.client.compile_model import CompiledModel
from kernelfarm.client.farm.client import StageProgress
from kernelfarm.targets import all_targets

ROUNDING = 8.0
"""The error against float64 may be this many times eager's own, plus one unit of float32."""

console = Console(width=max(100, Console().width))


@dataclass
class Tally:
    """Totals of the compilations of all inputs for all targets."""

    seconds: dict[str, float] = field(default_factory=dict)
    jobs: Counter[str] = field(default_factory=Counter)
    programs: dict[str, dict[str, CompiledModel]] = field(default_factory=lambda: defaultdict(dict))


def main() -> int:
    """Runs the demo; returns 0 if all numbers were correct and the second pass made no jobs."""
    torch.set_grad_enabled(False)
    begun = time.monotonic()
    console.rule("[bold]kernelfarm: one request, many vendors, no accelerator")
    console.print("starting the farm: broker, cache, frontend, optimizer, codegen, four workers")
    with running_farm() as farm:
        os.environ["KERNELFARM_ENDPOINT"] = farm.endpoint
        console.print(f"serving on {farm.endpoint} after {time.monotonic() - begun:.1f} s\n")
        failures = show_numerics()
        first = compile_everything("first", "compiling for every target")
        second = compile_everything("second", "the same again, from the cache")
        show_targets(first, second)
        show_kernels(first)
    if sum(second.jobs.values()):
        failures.append(f"the second pass made {sum(second.jobs.values())} jobs, expected none")
    for failure in failures:
        console.print(f"[red]FAILED[/red] {failure}")
    console.print(f"all stopped; {time.monotonic() - begun:.0f} s in all")
    return 1 if failures else 0


def show_numerics() -> list[str]:
    """Runs all models through `torch.compile` on this CPU, and compares them with eager."""
    table = Table(title="torch.compile on this CPU, against eager", title_justify="left")
    for name in ("input", "first call s", "error", "eager's error", "verdict"):
        table.add_column(name, justify="left" if name in ("input", "verdict") else "right")
    failures = []
    for row in [check_whole_graph(make()) for make in WHOLE_GRAPHS.values()] + check_branches():
        name, seconds, error, allowed, eager_error = row
        verdict = "ok" if error <= allowed else "WRONG"
        if verdict != "ok":
            failures.append(f"{name}: error {error:.2e}, allowed {allowed:.2e}")
        table.add_row(name, f"{seconds:.2f}", f"{error:.1e}", f"{eager_error:.1e}", verdict)
    console.print(table)
    return failures


def check_whole_graph(source: RealInput) -> tuple[str, float, float, float, float]:
    """Name, seconds of the first call, error against float64, allowed error, eager's error."""
    eager = source.model(*source.args)
    compiled = torch.compile(source.model, backend="kernelfarm", mode="strict")
    begun = time.perf_counter()
    result = compiled(*source.args)
    seconds = time.perf_counter() - begun
    exact = in_float64(source)
    scale = exact.abs().max().item()
    eager_error = (eager.double() - exact).abs().max().item()
    error = (result.double() - exact).abs().max().item()
    allowed = ROUNDING * eager_error + scale * torch.finfo(torch.float32).eps
    return source.name, seconds, error, allowed, eager_error


def in_float64(source: RealInput) -> torch.Tensor:
    """The model's result computed in float64."""
    args = [a.double() if a.is_floating_point() else a for a in source.args]
    if not isinstance(source.model, torch.nn.Module):
        return source.model(*args)
    state = {name: value.clone() for name, value in source.model.state_dict().items()}
    try:
        return source.model.double()(*args).clone()
    finally:
        source.model.float().load_state_dict(state)


def check_branches() -> list[tuple[str, float, float, float, float]]:
    """The same for both branches of `f` and `g`, which are captured as several sub-graphs."""
    torch._dynamo.config.use_numpy_random_stream = True
    x = torch.linspace(-1, 1, 5)
    cases: list[tuple[str, Any, tuple[torch.Tensor, ...]]] = [
        ("f, sum > 0", f, (x + 30,)),
        ("f, sum < 0", f, (x - 30,)),
        ("g, sum > 0", g, (x + 30, x)),
        ("g, sum < 0", g, (x - 30, x)),
    ]
    rows = []
    compiled = {code: torch.compile(code, backend="kernelfarm", mode="strict") for code in (f, g)}
    for name, code, args in cases:
        np.random.seed(0)
        eager = code(*args)
        np.random.seed(0)
        begun = time.perf_counter()
        result = compiled[code](*args)
        seconds = time.perf_counter() - begun
        error = (result - eager).abs().max().item()
        rows.append((name, seconds, error, 4 * torch.finfo(result.dtype).eps * 64, 0.0))
    return rows


def compile_everything(name: str, title: str) -> Tally:
    """Compiles every input for every target: float32 for CPUs, float16 for accelerators."""
    tally = Tally()
    targets = all_targets()
    cpus = [name for name, facts in targets.items() if facts.processor is not None]
    others = [name for name, facts in targets.items() if facts.processor is None]
    begun = time.monotonic()
    with progress_bar() as progress:
        bar = progress.add_task(title, total=len(WHOLE_GRAPHS) * len(targets), detail="")
        for source_name, make in WHOLE_GRAPHS.items():
            for source, wanted in ((make(), cpus), (make().half(), others)):
                reached = Reached(progress, bar, source_name)
                compiled = kernelfarm.compile(
                    source.model, source.args, targets=wanted, timeout_s=300, on_progress=reached
                )
                progress.update(bar, advance=len(wanted) - reached.programs)
                for target, program in compiled.programs.items():
                    tally.programs[source_name][target] = compiled
                    tally.jobs[target] += program.codegen_jobs
    tally.seconds[name] = time.monotonic() - begun
    console.print(f"{title}: {sum(tally.jobs.values())} kernel jobs, {tally.seconds[name]:.1f} s\n")
    return tally


class Reached:
    """Advances the bar when targets are published."""

    def __init__(self, progress: Progress, bar: Any, source: str) -> None:
        self._progress, self._bar, self._source = progress, bar, source
        self.programs = 0

    def __call__(self, event: StageProgress) -> None:
        """Handles one event of the farm's stream."""
        detail = f"{self._source} {event.target} {event.stage}"
        is_done = event.stage == "publish" and event.done > 0
        self.programs += is_done
        self._progress.update(self._bar, advance=int(is_done), detail=detail)


def progress_bar() -> Progress:
    """A bar that counts programs."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=console,
    )


def show_targets(first: Tally, second: Tally) -> None:
    """Prints a row for each target: its binaries, and the jobs of the second pass."""
    table = Table(title="every input for every target", title_justify="left")
    for name in ("target", "binary", "kernels", "bytes", "compile ms", "jobs", "jobs again"):
        table.add_column(name, justify="left" if name in ("target", "binary") else "right")
    for target in all_targets():
        variants = {
            variant.binary.sha256: variant
            for compiled in first.programs.values()
            for kernel in compiled[target].programs[target].kernels
            for variant in kernel
        }.values()
        kinds = {v.binary.name + (" (stub)" if v.is_stub else "") for v in variants}
        table.add_row(
            target,
            ", ".join(sorted(kinds)),
            str(len({v.key for v in variants})),
            str(sum(v.binary.size_bytes for v in variants)),
            f"{sum(v.cost_ms for v in variants):.0f}",
            str(first.jobs[target]),
            str(second.jobs[target]),
        )
    console.print(table)
    stubs = {
        variant.stub_reason
        for compiled in first.programs.values()
        for model in compiled.values()
        for program in model.programs.values()
        for kernel in program.kernels
        for variant in kernel
        if variant.is_stub
    }
    for reason in sorted(stubs):
        console.print(f"stub: {reason}", style="yellow")


def show_kernels(first: Tally) -> None:
    """Prints a row for each input: the launches and distinct kernels of its plan."""
    table = Table(title="plans (on the CPU)", title_justify="left")
    for name in ("input", "captured nodes", "launches", "distinct kernels", "extern steps"):
        table.add_column(name, justify="left" if name == "input" else "right")
    for name, compiled in first.programs.items():
        target = next(name for name in compiled if all_targets()[name].processor is not None)
        model = compiled[target]
        plan = model.programs[target].plan
        launches = sum(hasattr(step, "kernel") for step in plan.steps)
        table.add_row(
            name,
            str(len(model.graph.nodes)),
            str(launches),
            str(len(plan.kernel_names)),
            str(len(plan.steps) - launches),
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
