"""Kernels of public packages (Liger, FlagGems) on a GPU; the programs are made where there is none.

Each case calls a kernel in a model. The results must have the values that Triton's own JIT gives on
the GPU, within rounding, and must be as near to float64 as the case states.

Usage: python -m tests.gpu.public_kernels build FOLDER PACKAGES [--target T]
       python -m tests.gpu.public_kernels run FOLDER PACKAGES [--json FILE]

PACKAGES is a folder into which pip installed them (`PINNED`), without their dependencies.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from kernelfarm.client import counters
from tests.support.judge import judge
from tests.support.prepared_folder import canonical_text, offline, prepare
from tests.support.public_kernels.captures import graphs_of, public_kernels
from tests.support.public_kernels.kernel import PublicKernel, Tensors

_OPTIONS: dict[str, Any] = {"mode": "strict", "timeout_s": 2.0}
_EAGER = "runner.eager_calls"


def problem_of(kernel: PublicKernel, device: torch.device) -> str:
    """What is wrong with a kernel on a GPU; empty if it is right."""
    torch._dynamo.reset()
    on_device = tuple(tensor.to(device) for tensor in kernel.arguments)
    before = counters.snapshot().get(_EAGER, 0)
    run = torch.compile(kernel.model, backend="kernelfarm", dynamic=False, options=_OPTIONS)
    with torch.no_grad():
        theirs = _on_cpu(kernel.model(*on_device))
        ours = [_on_cpu(run(*on_device)) for _ in range(2)]
        doubled = (x.double() if x.is_floating_point() else x for x in kernel.arguments)
        exact = kernel.exact(*doubled)
    if counters.snapshot().get(_EAGER, 0) != before:
        return "some calls ran eager"
    for results in ours:
        verdict = judge(results, theirs, exact, kernel.arguments)
        if verdict.problem:
            return f"beside Triton's JIT: {verdict.problem}"
        for number, (result, expected) in enumerate(zip(results, exact, strict=True)):
            error = (result.double() - expected).abs().max() / expected.abs().max()
            if not error <= kernel.tolerance:
                return f"result {number} errs by {error:.3g}; expected at most {kernel.tolerance}"
    return ""


def _on_cpu(results: Any) -> Tensors:
    listed = results if isinstance(results, tuple) else (results,)
    return tuple(result.cpu() for result in listed)


def main() -> int:
    """Fills a folder, or runs its programs; 1 if a kernel is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("packages", type=Path)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--json", type=Path, help="(run) where to write what became of each kernel")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    return (_build if options.command == "build" else _run)(options)


def _build(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    named = ((kernel.name, graphs_of(kernel)) for kernel in public_kernels(options.packages))
    prepared = prepare(named, options.folder, options.target, {})
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure[:600]}")
    print(f"{len(prepared.graphs)} kernels, {len(prepared.failures)} failed")
    return 1 if prepared.failures else 0


def _run(options: argparse.Namespace) -> int:
    found: dict[str, str] = {}
    with offline(options.folder) as prepared:
        for kernel in public_kernels(options.packages):
            try:
                graphs = [canonical_text(graph) for graph in graphs_of(kernel)]
                problem = problem_of(kernel, torch.device("cuda:0"))
                same = graphs == prepared.graphs[kernel.name]
                found[kernel.name] = problem or ("" if same else "its graph differs")
            except Exception:  # the other kernels are run, too
                found[kernel.name] = traceback.format_exc()[-1500:]
            print(f"{kernel.name}: {found[kernel.name] or 'right'}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
