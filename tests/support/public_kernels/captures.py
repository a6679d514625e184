"""Kernels of public packages, called in models that a farm compiles; a program of its own.

It runs in a process of its own, because it imports packages from a folder that the test filled, and
because FlagGems asks for a GPU when it is imported. What PyTorch would answer with a GPU is stated
here; PyTorch captures the calls, and the farm compiles the graphs. No kernel runs.

Usage: python -m tests.support.public_kernels.captures FOLDER --endpoint HOST:PORT --target T [...]

The last line of the output is JSON: for each kernel and target an error, or an empty text.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP
from tests.support.public_kernels.kernel import PublicKernel
from tests.support.traced_graphs import recording
from tests.support.triton_without_gpu import as_with_a_gpu

_TIMEOUT_S = 600.0
_H100 = SimpleNamespace(
    name="NVIDIA H100", multi_processor_count=132, major=9, minor=0, total_memory=80 << 30
)


def public_kernels(folder: Path) -> list[PublicKernel]:
    """Every kernel, of packages that are installed in a folder."""
    sys.path.insert(0, str(folder))
    os.environ["GEMS_VENDOR"] = "nvidia"
    with ExitStack() as stack:
        if not torch.cuda.is_available():
            stack.enter_context(as_with_a_gpu())
            stack.enter_context(_as_with_an_h100())
        from tests.support.public_kernels.flag_gems import flag_gems_kernels  # noqa: PLC0415
        from tests.support.public_kernels.liger import liger_kernels  # noqa: PLC0415

        return [*liger_kernels(), *flag_gems_kernels()]


def graphs_of(kernel: PublicKernel) -> list[Graph]:
    """The graphs of a kernel's model, captured on the CPU without running the kernel."""
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    with as_with_a_gpu(), torch.no_grad():
        model = torch.compile(kernel.model, backend=recording(found, runs=False), dynamic=False)
        model(*kernel.arguments)
    return [captured.graph for captured in found]


def _as_with_an_h100() -> Any:
    """Answers what FlagGems asks PyTorch about its device."""
    return mock.patch.multiple(
        torch.cuda,
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_name=lambda *_: _H100.name,
        get_device_properties=lambda *_: _H100,
        get_device_capability=lambda *_: (9, 0),
    )


def _problem(client: FarmClient, graphs: list[Graph], target: str) -> str:
    if sum(node.op == USER_KERNEL_OP for graph in graphs for node in graph.nodes) != 1:
        return "the model's graphs do not have one user kernel"
    for graph in graphs:
        try:
            client.compile(graph, [target])
        except KernelfarmError as error:
            return f"{type(error).__name__}: {error}"[:1500]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--target", action="append", required=True)
    options = parser.parse_args()
    found: dict[str, dict[str, str]] = {}
    with connect(options.endpoint, _TIMEOUT_S) as client:
        for kernel in public_kernels(options.folder):
            try:
                graphs = graphs_of(kernel)
            except Exception as error:  # one capture that fails is reported with the others
                found[kernel.name] = dict.fromkeys(options.target, f"captured: {error}"[:1500])
                continue
            found[kernel.name] = {
                target: _problem(client, graphs, target) for target in options.target
            }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
