"""Whole models through a farm: launches, and errors beside eager."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from examples.model_zoo import model_of
from examples.real_inputs import RealInput
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.graph_ir import Graph
from tests.support.launches import Launches, launches_of_plans
from tests.support.traced_graphs import Run, capturing

CACHE = Path(__file__).parent / "inductor_launches.json"
"""Inductor's launches by model and type, with the torch version of `constraints.txt`."""
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
        """Our launches divided by Inductor's; None if either is unknown."""
        if self.launches is None or self.inductor is None:
            return None
        return self.launches.total / max(1, self.inductor.total)

    @property
    def is_exact(self) -> bool:
        """True if the error is at most twice eager's, or a few units in the last place."""
        few_ulp = 8 * torch.finfo(getattr(torch, self.dtype)).eps * self.largest
        return self.error <= max(2 * self.eager_error, few_ulp)


class CompiledGraphs:
    """The graphs of one forward pass, and their programs for the targets.

    `farm_s`: seconds from requests to programs, all graphs together.
    """

    def __init__(self, source: RealInput, client: FarmClient, targets: Sequence[str]) -> None:
        self.graphs: list[Graph] = []
        self.programs: list[CompiledProgram] = []
        self.farm_s = 0.0
        self._client = client
        self._targets = targets
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(source.model, backend=capturing(self._compile))(*source.args)

    def _compile(self, captured: CapturedGraph, gm: fx.GraphModule) -> Run:
        if not captured.is_trivial:
            self.graphs.append(captured.graph)
            began = time.perf_counter()
            if self._targets:
                self.programs += self._client.compile(captured.graph, self._targets)
            self.farm_s += time.perf_counter() - began
        return gm.forward


def launches_of(name: str, dtype: str, client: FarmClient) -> tuple[Launches, int]:
    """Launches of one forward pass on the CPU, and the number of its graphs."""
    found = CompiledGraphs(model_of(name, getattr(torch, dtype)), client, [host_cpu_target()])
    return launches_of_plans(found.programs), len(found.graphs)


def errors(source: RealInput) -> tuple[float, float, float]:
    """Largest errors against float64 of the compiled model and of eager, and the largest value."""
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


def inductor_launches(wanted: list[str], *, is_counted: bool) -> dict[str, Launches]:
    """Inductor's launches by `MODEL TYPE`, from the file; `is_counted` adds those that it lacks."""
    known = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    missing = [key for key in wanted if key not in known]
    if missing and is_counted:
        known |= _count_inductor(missing)
        CACHE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return {key: Launches(**known[key]) for key in wanted if key in known}


def _count_inductor(wanted: list[str]) -> dict[str, Any]:
    """Counts launches in a new process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="kernelfarm-inductor-") as cache:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.inductor_models", *wanted],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    counted: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        counted |= json.loads(line)
    return counted
