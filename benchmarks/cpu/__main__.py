"""Kernels of the CPU backend beside eager and Inductor, which take turns in one process.

For each program: the time of eager and of Inductor as a multiple of ours (above 1, ours is faster),
and our largest error against float64 as a multiple of eager's. All stages of the farm run in this
process. On a machine with AVX-512, `--target cpu:x86-64-v3` also holds Inductor to AVX2; eager is
held by the environment: ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
ONEDNN_MAX_CPU_ISA=AVX2.

Usage: python -m benchmarks.cpu [--target T] [--threads N] [--only NAME ...] [--dtype T]
           [--no-inductor] [--stages FOLDER]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from benchmarks.cpu.programs import PROGRAMS, Program
from benchmarks.machine import machine
from benchmarks.timing import Call, median_ms
from codegen_svc.backends.cpu.backend import BACKEND
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.tracing import GraphCompiler
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import capturing

ROUNDS = 9
_CALLS_MS = 20
"""Milliseconds that a round of one arm takes about."""
_AVX2_BITS = 256
# Source: glibc, malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def main() -> None:
    """Prints one line for each program, and the geometric means."""
    options = _options()
    warnings.simplefilter("ignore")
    _keep_memory()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    inductor: dict[str, int] = {"compile_threads": 1}  # others run while programs are measured
    if options.target.endswith("v3"):
        inductor["cpp.simdlen"] = _AVX2_BITS
    print(machine(), torch.__version__, options.target, f"{options.threads} threads")
    print(f"{'program':<22}{'ours us':>9}  eager/ours  Inductor/ours  error ratio  launches")
    ratios: list[tuple[float, ...]] = []
    for name in options.only:
        with torch._inductor.config.patch(inductor):
            ratios.append(_measured(name, PROGRAMS[name], options))
    means = [statistics.geometric_mean(column) for column in zip(*ratios, strict=True)]
    print("geometric means:", " ".join(f"{mean:.2f}" for mean in means))


def _keep_memory() -> None:
    """Lets malloc keep freed memory: else pages of large results are mapped anew at each call."""
    process = ctypes.CDLL(None)
    for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        process.mallopt(option, 1 << 30)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default=host_cpu_target())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=tuple(PROGRAMS), default=tuple(PROGRAMS))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--stages", type=Path, help="a folder for the stages of all kernels")
    return parser.parse_args()


def _measured(name: str, program: Program, options: argparse.Namespace) -> tuple[float, ...]:
    """Prints and returns the times of the peers as multiples of ours."""
    operands = program.operands(getattr(torch, options.dtype))
    counts = Counts()
    graphs: list[CapturedGraph] = []
    torch._dynamo.reset()
    arms: dict[str, Call] = {
        "ours": _call(program, operands, _backend(options.target, counts, graphs)),
        "eager": lambda: program.function(*operands),
    }
    if not options.no_inductor:
        arms["inductor"] = _call(program, operands, "inductor")
    if options.stages:
        _write_stages(options.stages / name, graphs[0], options.target)
    once_ms = median_ms({"eager": arms["eager"]}, "cpu", rounds=3, calls=3)["eager"]
    calls = max(1, round(_CALLS_MS / once_ms))
    times = median_ms(arms, "cpu", rounds=ROUNDS, calls=calls)
    error = _error_ratio(arms["ours"](), program, operands)
    peers = tuple(times[arm] / times["ours"] for arm in times if arm != "ours")
    listed = "".join(f"{ratio:12.2f}" for ratio in peers)
    steps = f"{counts.launches}{'+' if counts.externs else ''}{','.join(counts.externs)}"
    print(f"{name:<22}{1e3 * times['ours']:9.1f}{listed}{error:14.2f}  {steps}", flush=True)
    return peers


def _backend(target: str, counts: Counts, graphs: list[CapturedGraph]) -> GraphCompiler:
    """A backend that compiles in this process, and appends each graph."""

    def compiled(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., Any]:
        graphs.append(captured)
        runner = compile_here(captured, counts, target_facts(target))
        return lambda *args: runner(args)

    return capturing(compiled)


def _call(program: Program, operands: list[Tensor], backend: Any) -> Call:
    """A call of the program, compiled for these sizes."""
    function = torch.compile(program.function, backend=backend, dynamic=False)
    function(*operands)
    return lambda: function(*operands)


def _error_ratio(ours: Any, program: Program, operands: list[Tensor]) -> float:
    wide = [x.double() if x.is_floating_point() else x for x in operands]
    exact = program.function(*wide)
    eager = program.function(*operands)
    errors = [float((y.double() - exact).abs().max()) for y in (ours, eager)]
    return errors[0] / errors[1] if errors[1] else (1.0 if not errors[0] else float("inf"))


def _write_stages(folder: Path, captured: CapturedGraph, target: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    facts = target_facts(target)
    program = optimize(decompose_to_prims(captured.graph).graph, facts).program
    for kernel in program.kernels:
        (built,) = BACKEND.build(kernel, facts)
        for stage in built.stages:
            if stage.name != built.binary_stage:
                (folder / f"{kernel.name}.{stage.name}").write_bytes(stage.content)


if __name__ == "__main__":
    main()
