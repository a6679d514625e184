"""Attention by kernels beside the framework's: of one query for each head, and of several.

On a CPU (`cpu`), a farm in this process's machine compiles. For a GPU, `build` compiles by a farm
into a folder, without a GPU; `run` needs that folder and a GPU, but no farm. Arms take turns. On a
GPU each is a replay of a CUDA graph in which copies of keys and values take turns, so that they
come from memory.

Usage: python -m benchmarks.attention cpu [--threads N ...] [--types T ...] [--only TEXT ...]
       python -m benchmarks.attention build FOLDER [--target T] [--types T ...] [--several]
       python -m benchmarks.attention run FOLDER [--types T ...] [--several] [--no-inductor]
       (with --varying, both for numbers of rows that vary; --only TEXT ... for some cases; --pages
       for keys and values in pages of a cache, which eager gathers)
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.attention_cases import CPU_CASES, GPU_CASES, PAGED_CASES, Case
from benchmarks.products import Layer, rotated
from benchmarks.timing import Call, median_ms, replayed
from examples.farm import running_farm
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
from tests.support.prepared_folder import offline, prepare
from tests.support.traced_graphs import recording

ROUNDS, CALLS = 7, 3
_COLD_BYTES = 160 << 20
_MAX_COPIES = 16
_STRICT = {"mode": "strict", "timeout_s": 60.0}


def main() -> int:
    options = _options()
    warnings.simplefilter("ignore")
    limits = {"recompile_limit": 1000, "accumulated_recompile_limit": 1000}
    with torch._dynamo.config.patch(limits), torch.no_grad():
        commands = {"cpu": _on_cpu, "build": _build, "run": _run}
        return commands[options.command](options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("cpu", "build", "run"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--target", default="cuda:sm_90a", help="for build")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--types", nargs="*")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names hold any of these")
    parser.add_argument("--varying", action="store_true", help="numbers of rows vary")
    parser.add_argument("--pages", action="store_true", help="only those of keys in pages")
    parser.add_argument("--several", action="store_true", help="only those of several queries")
    return parser.parse_args()


def _types(options: argparse.Namespace, usual: tuple[str, ...]) -> list[torch.dtype]:
    return [getattr(torch, name) for name in options.types or usual]


def _marked(
    case: Case, operands: tuple[Tensor, ...], options: argparse.Namespace
) -> tuple[Tensor, ...]:
    """The operands; if sizes vary, those of heads and pages do not."""
    if options.varying:
        for operand in operands[:3]:
            torch._dynamo.mark_static(operand, case.fixed_axes)
    return operands


def _gpu_cases(options: argparse.Namespace) -> list[Case]:
    if options.pages:
        return _named(PAGED_CASES, options)
    cases = [case for case in GPU_CASES if case.queries > 1 or not options.several]
    return _named(cases, options)


def _named(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    """The cases that are to be measured."""
    return [c for c in cases if not options.only or any(text in str(c) for text in options.only)]


def _compiled(case: Case, backend: Any, options: Any = None, *, varies: bool = False) -> Layer:
    torch._dynamo.reset()
    compiled: Layer = torch.compile(case.attend, backend=backend, dynamic=varies, options=options)
    return compiled


def _on_cpu(options: argparse.Namespace) -> int:
    print("threads, type, case: milliseconds of the framework; ours / framework; errors of both")
    with running_farm(vendors="cpu") as farm:
        os.environ["KERNELFARM_ENDPOINT"] = farm.endpoint
        for threads in options.threads:
            torch.set_num_threads(threads)
            for dtype in _types(options, ("bfloat16", "float16", "float32")):
                for case in _named(CPU_CASES, options):
                    operands = case.operands(dtype, "cpu")
                    layers = {
                        "framework": case.attend,
                        "ours": _compiled(case, "kernelfarm", _STRICT),
                    }
                    errors = _errors(case, layers, operands)
                    calls = {arm: _call(layer, operands) for arm, layer in layers.items()}
                    times = median_ms(calls, "cpu", rounds=ROUNDS, calls=CALLS)
                    ratio = times["ours"] / times["framework"]
                    name = str(dtype).removeprefix("torch.")
                    print(
                        f"{threads} {name:<9}{case!s:<66}{times['framework']:8.3f} {ratio:6.2f}"
                        f"  {errors['ours']:.1e} {errors['framework']:.1e}",
                        flush=True,
                    )
    return 0


def _errors(case: Case, layers: dict[str, Layer], operands: tuple[Tensor, ...]) -> dict[str, float]:
    """The largest differences from float64 in the first sequence, whose scores fit the memory."""
    first = case.of_first(operands)
    exact = case.attend(*(x.double() if x.is_floating_point() else x for x in first))
    return {
        arm: (layer(*operands)[:1].double() - exact).abs().max().item()
        for arm, layer in layers.items()
    }


def _call(layer: Layer, operands: tuple[Tensor, ...]) -> Call:
    return lambda: layer(*operands)


def _build(options: argparse.Namespace) -> int:
    """Fills the folder; the exit status is 1 if a program did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare(_captured(options), options.folder, options.target, {})
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    return 1 if prepared.failures else 0


def _captured(options: argparse.Namespace) -> Iterator[tuple[str, list[Graph]]]:
    for dtype in _types(options, ("bfloat16",)):
        for case in _gpu_cases(options):
            found: list[CapturedGraph] = []
            operands = _marked(case, case.operands(dtype, "cpu"), options)
            _compiled(case, recording(found, runs=False), varies=options.varying)(*operands)
            yield f"{dtype} {case}", [captured.graph for captured in found]


def _run(options: argparse.Namespace) -> int:
    print(torch.cuda.get_device_name(), torch.__version__)
    print("case: microseconds of eager; GB/s of ours; eager / arm; errors of ours and eager")
    print("with several queries, TFLOP/s")
    failures = 0
    with offline(options.folder):
        for dtype in _types(options, ("bfloat16",)):
            for case in _gpu_cases(options):
                try:
                    print(_line(case, dtype, options), flush=True)
                except Exception as error:  # a case that fails is one row of the table
                    failures += 1
                    text = "".join(traceback.format_exception_only(error)).strip()
                    print(f"{case}: FAILED {text[:400]}", flush=True)
    return 1 if failures else 0


def _line(case: Case, dtype: torch.dtype, options: argparse.Namespace) -> str:
    torch.manual_seed(0)
    copies = [case.operands(dtype, "cuda")]
    size_bytes = sum(tensor.numel() * tensor.itemsize for tensor in copies[0])
    count = max(2, min(_MAX_COPIES, -(-_COLD_BYTES // size_bytes)))
    copies += [case.operands(dtype, "cuda") for _ in range(count - 1)]
    copies = [_marked(case, operands, options) for operands in copies]
    varies = options.varying
    ours = _compiled(case, "kernelfarm", {**_STRICT, "timeout_s": 2.0}, varies=varies)
    layers = {"eager": case.attend, "ours": ours}
    layers["ours"](*copies[0])
    if not options.no_inductor:
        layers["inductor"] = _compiled(case, "inductor", varies=varies)
        layers["inductor"](*copies[0])
    errors = _errors(case, {arm: layers[arm] for arm in ("ours", "eager")}, copies[0])
    calls = {arm: replayed(rotated(layer, copies)) for arm, layer in layers.items()}
    times = median_ms(calls, "cuda", rounds=ROUNDS, calls=CALLS)
    each_us = {arm: 1e3 * ms / count for arm, ms in times.items()}
    ratios = " ".join(
        f"{arm} {each_us['eager'] / us:5.2f}" for arm, us in each_us.items() if arm != "eager"
    )
    rate = f"{size_bytes / each_us['ours'] / 1e3:6.0f} GB/s"
    if case.queries > 1:
        rate = f"{case.flops() / each_us['ours'] / 1e6:6.0f} TFLOP/s"
    return (
        f"{case!s:<66} {each_us['eager']:8.2f} us {rate}  {ratios}"
        f"  {errors['ours']:.1e} {errors['eager']:.1e}"
    )


if __name__ == "__main__":
    sys.exit(main())
