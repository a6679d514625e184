"""A process that runs commands of `kernelfarm` one after another, for `test_riscv_vendor`.

Usage: python -m tests.e2e.riscv_commands FOLDER

Warms, compiles and explains for RISC-V in the folder, and runs the warmed model on an emulated
processor. Prints one JSON line: the outputs of the commands by name, and the client's counters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from kernelfarm.client import counters
from tests.e2e.warmed_models import scaled
from tests.support.command_line import run_command
from tests.support.riscv_vendor import TARGET

NUMBER = 3.25
MANIFEST = f"""
format: 1
targets: ["{TARGET}"]
models:
  - name: scaled
    entry: tests.e2e.warmed_models:scaled
    arguments: {{number: {NUMBER}}}
    tag: scaled@1
"""


def main(folder: Path) -> None:
    """Runs everything."""
    manifest, package, out = folder / "m.yaml", folder / "model.pt2", folder / "out"
    manifest.write_text(MANIFEST)
    model, args = scaled(NUMBER)
    torch.export.save(torch.export.export(model, args), package)
    found = {
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
    print(json.dumps({**found, "error": error, "counters": counters.snapshot()}))


def _kernel(out: Path) -> str:
    (program,) = json.loads((out / "manifest.json").read_text())["programs"]
    return str(program["kernels"][0]["name"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
