"""Launches of one forward pass on the CPU: kernelfarm's plans beside Inductor's wrappers.

Both count by one rule: own kernels, plus every extern step that is not a contraction, attention or
convolution. Inductor's kernels are the `cpp_fused_*` calls of its wrapper's `call`; it runs in a
fresh process with empty caches.

Usage: python -m benchmarks.launches [--models NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from benchmarks.farm import running_farm
from examples.real_inputs import WHOLE_GRAPHS, RealInput
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.tracing import backend_around
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.program_ir import DrawSeeds, ExternCall, Launch

MODEL_WITH_BAR = "llama"
"""Here kernelfarm may launch no more than Inductor; the other counts are for the reader."""


@dataclass(frozen=True)
class Launches:
    """What one forward pass runs.

    `kernels` launches of own kernels, of which `distinct` differ; `contractions` and `others` count
    extern steps by operator: products, attention and convolutions, and all others.
    """

    kernels: int
    distinct: int
    contractions: dict[str, int]
    others: dict[str, int]

    @property
    def total(self) -> int:
        """What the rule counts."""
        return self.kernels + sum(self.others.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=list(WHOLE_GRAPHS), default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with running_farm(vendors="cpu") as endpoint:
        for name in options.models or WHOLE_GRAPHS:
            ours = launches_of_plans(programs_of(WHOLE_GRAPHS[name](), endpoint))
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


def programs_of(source: RealInput, endpoint: str) -> list[CompiledProgram]:
    """The programs that `torch.compile` asks the farm for, one for each captured graph."""
    client, target = connect(endpoint), host_cpu_target()
    programs = []

    def compile_graph(gm: fx.GraphModule, _: Any) -> Any:
        with unset_fake_temporarily():
            programs.extend(client.compile(capture(gm).graph, [target]))
        return make_boxed_func(gm.forward)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(source.model, backend=backend_around(compile_graph))(*source.args)
    client.close()
    return programs


def launches_of_plans(programs: list[CompiledProgram]) -> Launches:
    """What the plans' steps launch, all graphs together; a kernel is what has its own key."""
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
    """Inductor's launches for a real input, compiled in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="kernelfarm-inductor-") as cache:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks._inductor_launches", name],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"Inductor on {name} failed:\n{done.stderr[-4000:]}")
    return Launches(**json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
