"""Launches of one forward pass: our plans and Inductor's wrappers, counted by one rule.

The rule counts own kernels, plus every extern step that is not a contraction, attention or
convolution.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass

import torch
from torch import fx

from examples.real_inputs import RealInput
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.program_ir import DrawSeeds, ExternCall, Launch
from tests.support.traced_graphs import Run, capturing


@dataclass(frozen=True)
class Launches:
    """Launches of one forward pass.

    `kernels` counts launches of own kernels, `distinct` the kernels among them. Extern steps by
    operator: `contractions` are products, attention and convolutions, `others` all others.
    """

    kernels: int
    distinct: int
    contractions: dict[str, int]
    others: dict[str, int]

    @property
    def total(self) -> int:
        """Own kernels, and extern steps that are no contractions."""
        return self.kernels + sum(self.others.values())


def programs_of(source: RealInput, endpoint: str) -> list[CompiledProgram]:
    """The programs that a farm returns for the graphs of `torch.compile`, one for each graph."""
    programs: list[CompiledProgram] = []
    with connect(endpoint) as client:

        def compile_graph(captured: CapturedGraph, gm: fx.GraphModule) -> Run:
            programs.extend(client.compile(captured.graph, [host_cpu_target()]))
            return gm.forward

        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(source.model, backend=capturing(compile_graph))(*source.args)
    return programs


def launches_of_plans(programs: list[CompiledProgram]) -> Launches:
    """The launches of all plans together; kernels are distinct if their keys differ."""
    plans = [program.plan for program in programs]
    keys = {key for plan in plans for key in plan.kernel_keys}
    steps = [step for plan in plans for step in plan.steps]
    externs = [step for step in steps if isinstance(step, ExternCall)]
    draws = Counter("draw seeds" for step in steps if isinstance(step, DrawSeeds))
    return Launches(
        kernels=sum(isinstance(step, Launch) for step in steps),
        distinct=len(keys),
        contractions=dict(Counter(s.op for s in externs if s.is_contraction)),
        others=dict(Counter(s.op for s in externs if not s.is_contraction) + draws),
    )


def inductor_launches(name: str) -> Launches:
    """Inductor's launches for a real input, compiled in a new process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="kernelfarm-inductor-") as cache:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.inductor_launches", name],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"Inductor on {name} failed:\n{done.stderr[-4000:]}")
    return Launches(**json.loads(done.stdout.strip().splitlines()[-1]))
