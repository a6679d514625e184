"""Whole models through one farm on the CPU, beside eager and Inductor.

For each model and type: the error against float64 beside eager's, launches by the rule of
`benchmarks.launches`, externs by name, the farm's time when its cache is empty, and Inductor's
launches (kept in a file, since they need a process each). With `--targets`: which kernels fail in
which target's toolchain.

Usage: python -m benchmarks.models [--models NAME ...] [--dtypes T ...] [--inductor]
           [--targets TARGET ...] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from benchmarks.farm import running_farm
from benchmarks.launches import Launches, launches_of_plans
from benchmarks.model_table import markdown_of
from examples.model_zoo import MODELS, model_of
from examples.real_inputs import RealInput
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.tracing import backend_around
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.graph_ir import Graph

DTYPES = ("float32", "bfloat16", "float16")
CACHE = Path(__file__).parent / "inductor_launches.json"
"""Inductor's launches by model and type, for the torch of constraints."""
TIMEOUT_S = 300.0


@dataclass
class Measured:
    """One model in one type; `failure` is empty if everything worked.

    Errors are absolute, against float64; `largest` is the largest absolute value of the result.
    """

    model: str
    dtype: str
    graphs: int = 0
    nodes: int = 0
    launches: Launches | None = None
    farm_s: float = 0.0
    error: float = 0.0
    eager_error: float = 0.0
    largest: float = 0.0
    inductor: Launches | None = None
    targets: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    @property
    def ratio(self) -> float | None:
        """Launches by Inductor's; None where either is not known."""
        if self.launches is None or self.inductor is None:
            return None
        return self.launches.total / max(1, self.inductor.total)

    @property
    def is_exact(self) -> bool:
        """True if the error is at most twice eager's, or a few units in the last place."""
        few_ulp = 8 * torch.finfo(getattr(torch, self.dtype)).eps * self.largest
        return self.error <= max(2 * self.eager_error, few_ulp)


def main() -> int:
    options = _options()
    vendors = sorted({"cpu", *(target.split(":")[0] for target in options.targets)})
    names = options.models or list(MODELS)
    wanted = [f"{name} {dtype}" for name in names for dtype in options.dtypes]
    peers = inductor_launches(wanted, is_counted=options.inductor)
    rows = []
    with running_farm(vendors=",".join(vendors)) as endpoint:
        os.environ["KERNELFARM_ENDPOINT"] = endpoint
        client = connect(endpoint, TIMEOUT_S)
        for name in names:
            for dtype in options.dtypes:
                peer = peers.get(f"{name} {dtype}")
                rows.append(measure(name, dtype, client, peer, options))
                print(_line(rows[-1]), flush=True)
        client.close()
    if not options.targets:
        print(f"geomean of launch ratios: {geomean(rows):.3f} (bar 1.1)")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown_of(rows, geomean(rows)))
    return 0 if all(_is_good(row) for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=[])
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=list(DTYPES[:2]))
    parser.add_argument("--inductor", action="store_true", help="count what is not in the file")
    parser.add_argument("--targets", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


def measure(
    name: str, dtype: str, client: FarmClient, peer: Launches | None, options: argparse.Namespace
) -> Measured:
    row = Measured(name, dtype)
    try:
        if options.targets:
            row.targets = failures_by_target(name, dtype, client, options.targets)
        else:
            _measure_on_cpu(row, client)
            row.inductor = peer
    except Exception as error:  # one model's failure is a row, not the end of the table
        traceback.print_exc()
        row.failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    return row


def _measure_on_cpu(row: Measured, client: FarmClient) -> None:
    source = model_of(row.model, getattr(torch, row.dtype))
    asked = _Asked(client, [host_cpu_target()])
    asked.ask(source)
    row.graphs, row.nodes = len(asked.captured), sum(len(g.nodes) for g in asked.captured)
    row.launches, row.farm_s = launches_of_plans(asked.programs), asked.farm_s
    row.error, row.eager_error, row.largest = errors(source)


def launches_of(name: str, dtype: str, client: FarmClient) -> tuple[Launches, int]:
    """Launches of one forward pass on the CPU, and the number of graphs that it was cut into."""
    asked = _Asked(client, [host_cpu_target()])
    asked.ask(model_of(name, getattr(torch, dtype)))
    return launches_of_plans(asked.programs), len(asked.captured)


class _Asked:
    """Asks the farm for what `torch.compile` captures; keeps graphs, programs and times."""

    def __init__(self, client: FarmClient, targets: list[str]) -> None:
        self._client = client
        self._targets = targets
        self.captured: list[Graph] = []
        self.programs: list[CompiledProgram] = []
        self.farm_s = 0.0

    def ask(self, source: RealInput) -> None:
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(source.model, backend=backend_around(self._compile))(*source.args)

    def _compile(self, gm: fx.GraphModule, _: Any) -> Any:
        with unset_fake_temporarily():
            captured = capture(gm)
            if not captured.is_trivial:
                self.captured.append(captured.graph)
                began = time.perf_counter()
                if self._targets:
                    self.programs += self._client.compile(captured.graph, self._targets)
                self.farm_s += time.perf_counter() - began
        return make_boxed_func(gm.forward)


def errors(source: RealInput) -> tuple[float, float, float]:
    """Largest absolute errors against float64, of the compiled model and of eager; and value."""
    wide = tuple(a.double() if a.is_floating_point() else a for a in source.args)
    torch._dynamo.reset()
    with torch.no_grad():
        eager = source.model(*source.args)
        exact = copy.deepcopy(source.model).double()(*wide)
        options = {"strict": True, "timeout_s": TIMEOUT_S}
        compiled = torch.compile(source.model, backend="kernelfarm", options=options)
        results = [compiled(*source.args) for _ in range(2)]
    if not torch.equal(*results):
        raise RuntimeError("two calls gave different results")
    compiled_error, eager_error = (
        (result.double() - exact).abs().max().item() for result in (results[0], eager)
    )
    return compiled_error, eager_error, exact.abs().max().item()


def failures_by_target(
    name: str, dtype: str, client: FarmClient, targets: list[str]
) -> dict[str, str]:
    """For each target how many kernels compiled, or the first line of the failure."""
    found = {}
    graphs = _Asked(client, [])
    graphs.ask(model_of(name, getattr(torch, dtype)))
    for target in targets:
        try:
            programs = [client.compile(graph, [target])[0] for graph in graphs.captured]
            found[target] = f"{sum(len(program.kernels) for program in programs)} kernels"
        except KernelfarmError as error:
            found[target] = f"FAILED {type(error).__name__}: {error}"
    return found


def inductor_launches(wanted: list[str], *, is_counted: bool) -> dict[str, Launches]:
    """Inductor's launches by `MODEL TYPE`: from the file; what it lacks is counted and added."""
    known = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    missing = [key for key in wanted if key not in known]
    if missing and is_counted:
        known |= _count_inductor(missing)
        CACHE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return {key: Launches(**known[key]) for key in wanted if key in known}


def _count_inductor(wanted: list[str]) -> dict[str, Any]:
    """Launches counted in one fresh process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="kernelfarm-inductor-") as cache:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks._inductor_models", *wanted],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    counted: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        counted |= json.loads(line)
    return counted


def geomean(rows: list[Measured]) -> float:
    """Of the launch ratios that are known."""
    ratios = [row.ratio for row in rows if row.ratio]
    return statistics.geometric_mean(ratios) if ratios else float("nan")


def _is_good(row: Measured) -> bool:
    failed = [text for text in row.targets.values() if text.startswith("FAILED")]
    return not row.failure and row.is_exact and not failed


def _line(row: Measured) -> str:
    if row.failure:
        return f"{row.model:<14}{row.dtype:<9} FAILED {row.failure}"
    if row.targets:
        listed = "; ".join(f"{t}: {text[:300]}" for t, text in row.targets.items())
        return f"{row.model:<14}{row.dtype:<9} {listed}"
    assert row.launches is not None
    ratio = f"{row.ratio:.2f}" if row.ratio else "-"
    peer = row.inductor.total if row.inductor else "-"
    mark = "" if row.is_exact else "  WRONG"
    return (
        f"{row.model:<14}{row.dtype:<9} graphs {row.graphs} nodes {row.nodes:<4}"
        f" launches {row.launches.total:>3} / {peer:>3} = {ratio:>4}  distinct "
        f"{row.launches.distinct:>3}  farm {row.farm_s:5.1f} s  error {row.error:.2g}"
        f" / {row.eager_error:.2g}{mark}  {row.launches.others or ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
