"""A process that runs commands of `kernelfarm` one after another, for `test_riscv_vendor`.

Usage: python -m tests.e2e.riscv_commands FOLDER NAME...

Warms, compiles and explains for RISC-V in the folder, and runs the warmed model on an emulated
processor. Prints one JSON line: the outputs of the commands by name, the client's counters, and
what `riscv_client` measures of each model `NAME`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from kernelfarm.client import counters
from tests.e2e.riscv_client import measured
from tests.support.command_line import run_command
from tests.support.riscv_vendor import TARGET
from tests.support.warmed_models import scaled

NUMBER = 3.25
MANIFEST = f"""
format: 1
targets: ["{TARGET}"]
models:
  - name: scaled
    entry: tests.support.warmed_models:scaled
    arguments: {{number: {NUMBER}}}
    tag: scaled@1
"""


def main(folder: Path, *names: str) -> None:
    """Runs everything in one process: each start of one takes seconds."""
    manifest, package, out = folder / "m.yaml", folder / "model.pt2", folder / "out"
    manifest.write_text(MANIFEST)
    model, args = scaled(NUMBER)
    torch.export.save(torch.export.export(model, args), package)
    found: dict[str, Any] = {
        "doctor": run_command("doctor"),
        "warm": run_command("warm", manifest),
        "verify": run_command("verify-coverage", folder / "m.certificate.json"),
        "compile": run_command("compile", package, "--target", TARGET, "--out", out),
        "asm": run_command("explain", out, "--kernel", _kernel(out), "--stage", "asm"),
    }
    torch._dynamo.reset()
    counters.reset()
    with torch.no_grad():
        result = torch.compile(model, backend="kernelfarm", options={"strict": True})(*args)
        error = (result - model(*args)).abs().max().item()
    found |= {"error": error, "counters": counters.snapshot()}
    print(json.dumps({**found, "models": {name: measured(name) for name in names}}))


def _kernel(out: Path) -> str:
    (program,) = json.loads((out / "manifest.json").read_text())["programs"]
    return str(program["kernels"][0]["name"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
