"""Products of matrices and what follows them on a GPU: kernels beside libraries.

`build` compiles by a farm into a folder, without a GPU. `run` needs that folder and a GPU, but no
farm. Each arm is a replay of a CUDA graph in which copies of the weights take turns, so that they
come from memory: `own` (kernels compute the products), `library` (the plan calls the framework's
library, and kernels compute what follows), `auto` (what is expected to be faster), eager, and
Inductor.

Usage: python -m benchmarks.products build FOLDER [--target T] [--rows M ...] [--only TEXT ...]
       python -m benchmarks.products run FOLDER [--rows M ...] [--only TEXT ...] [--no-inductor]
"""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.timing import Call, median_ms, replayed
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.product_choice import ProductChoice
from tests.support.prepared_folder import offline, prepare
from tests.support.traced_graphs import recording

ROWS = (1, 4, 16, 32, 64)
ROUNDS, CALLS = 7, 3
_CHOICES = {
    "own": ProductChoice.OWN,
    "library": ProductChoice.LIBRARY,
    "auto": ProductChoice.AUTO,
}
_COLD_BYTES = 160 << 20
"""Copies of weights that take turns have so many bytes: three times an H100's cache."""
_MAX_COPIES = 32

Layer = Callable[..., Tensor]


@dataclass(frozen=True)
class Program:
    """A layer of `width` features, with the shapes of its weights and of a residual's rows."""

    layer: Layer
    width: int
    weights: tuple[tuple[int, ...], ...]
    residual: int = 0


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x, weight)


def _gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)


def _added(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    return residual + functional.linear(x, weight)


def _biased_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


def _columns(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight)


def _columns_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(torch.addmm(bias, x, weight), approximate="tanh")


def _columns_added(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return residual + torch.addmm(bias, x, weight)


PROGRAMS = {
    "8,192 terms by 8,192 columns": Program(_linear, 8192, ((8192, 8192),)),
    "Llama 8B, query": Program(_linear, 4096, ((4096, 4096),)),
    "Llama 8B, key": Program(_linear, 4096, ((1024, 4096),)),
    "Llama 8B, output, residual": Program(_added, 4096, ((4096, 4096),), 4096),
    "Llama 8B, gate, up, SiLU": Program(_gated, 4096, ((14336, 4096),) * 2),
    "Llama 8B, down, residual": Program(_added, 14336, ((4096, 14336),), 4096),
    "BERT-large, bias, GELU": Program(_biased_gelu, 1024, ((4096, 1024), (4096,))),
    "GPT-2, attention's inputs, bias": Program(_columns, 768, ((768, 2304), (2304,))),
    "GPT-2, output, bias, residual": Program(_columns_added, 768, ((768, 768), (768,)), 768),
    "GPT-2, bias, GELU": Program(_columns_gelu, 768, ((768, 3072), (3072,))),
    "GPT-2, down, bias, residual": Program(_columns_added, 3072, ((3072, 768), (768,)), 768),
    "GPT-2 XL, bias, GELU": Program(_columns_gelu, 1600, ((1600, 6400), (6400,))),
    "ConvNeXt-tiny, first stage, bias, GELU": Program(_biased_gelu, 96, ((384, 96), (384,))),
    "ConvNeXt-tiny, third stage, bias, GELU": Program(_biased_gelu, 384, ((1536, 384), (1536,))),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cuda:sm_90a", help="for build")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--only", nargs="*", default=("",), help="parts of the names of programs")
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    limits = {"recompile_limit": 1000, "accumulated_recompile_limit": 1000}
    with torch._dynamo.config.patch(limits), torch.no_grad():
        return _build(options) if options.command == "build" else _run(options)


def _build(options: argparse.Namespace) -> int:
    """Fills the folder; the exit status is 1 if a program did not compile."""
    options.folder.mkdir(parents=True, exist_ok=True)
    stated = [CompileOptions(products=choice) for choice in _CHOICES.values()]
    prepared = prepare(_captured(options), options.folder, options.target, {}, stated)
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure}")
    return 1 if prepared.failures else 0


def _captured(options: argparse.Namespace) -> Iterator[tuple[str, list[Graph]]]:
    for name, program, m in _cases(options):
        found: list[CapturedGraph] = []
        copies = layer_operands(program, m, "cpu", has_values=False)
        compiled_layer(program, recording(found, runs=False))(*next(copies))
        yield name, [captured.graph for captured in found]


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, Program, int]]:
    for name, program in PROGRAMS.items():
        if any(part in name for part in options.only):
            for m in options.rows:
                yield f"{name}, {m}", program, m


def layer_operands(
    program: Program, rows: int, device: str, *, has_values: bool = True
) -> Iterator[tuple[Tensor, ...]]:
    """Arguments with equal activations and ever new weights, of about unit results."""
    make = torch.randn if has_values else torch.empty
    shapes = [(rows, program.width), *([(rows, program.residual)] if program.residual else [])]
    given = [make(shape, device=device).bfloat16() for shape in shapes]
    scale = program.width**-0.5
    while True:
        weights = (make(shape, device=device) * scale for shape in program.weights)
        yield (*given, *(weight.bfloat16() for weight in weights))


def compiled_layer(program: Program, backend: Any, options: Any = None) -> Layer:
    torch._dynamo.reset()
    compiled: Layer = torch.compile(program.layer, backend=backend, dynamic=False, options=options)
    return compiled


def _run(options: argparse.Namespace) -> int:
    """Prints a line for each case; the exit status is 1 if one failed."""
    print(torch.cuda.get_device_name(), torch.__version__)
    print("program, rows: microseconds of eager; eager / arm, error of own / error of eager")
    failures = 0
    with offline(options.folder):
        for name, program, m in _cases(options):
            try:
                line = _line(name, program, m, with_inductor=not options.no_inductor)
                print(line, flush=True)
            except Exception as error:  # a case that fails is one row of the table
                failures += 1
                text = "".join(traceback.format_exception_only(error)).strip()
                print(f"{name}: FAILED {text[:400]}", flush=True)
    return 1 if failures else 0


def _line(name: str, program: Program, rows: int, *, with_inductor: bool) -> str:
    torch.manual_seed(0)
    made = layer_operands(program, rows, "cuda")
    first = next(made)
    weight_bytes = sum(t.numel() * t.itemsize for t in first[-len(program.weights) :])
    count = max(2, min(_MAX_COPIES, -(-_COLD_BYTES // weight_bytes)))
    copies = [first, *(next(made) for _ in range(count - 1))]
    arms: dict[str, Layer] = {"eager": program.layer}
    for arm, choice in _CHOICES.items():
        stated = {"mode": "strict", "timeout_s": 2.0, "products": choice.value}
        arms[arm] = compiled_layer(program, "kernelfarm", stated)
        arms[arm](*first)
    if with_inductor:
        arms["inductor"] = compiled_layer(program, "inductor")
        arms["inductor"](*first)
    exact = program.layer(*(tensor.double() for tensor in first))
    errors = {a: (arms[a](*first).double() - exact).abs().max().item() for a in ("own", "eager")}
    calls = {arm: replayed(rotated(layer, copies)) for arm, layer in arms.items()}
    times = median_ms(calls, "cuda", rounds=ROUNDS, calls=CALLS)
    ratios = " ".join(
        f"{arm} {times['eager'] / ms:5.2f}" for arm, ms in times.items() if arm != "eager"
    )
    eager_us = 1e3 * times["eager"] / len(copies)
    return f"{name:<40} {eager_us:8.2f} us  {ratios}  error {errors['own'] / errors['eager']:.2f}"


def rotated(layer: Layer, copies: Sequence[tuple[Tensor, ...]]) -> Call:
    """A call of a layer with each of the copies of its operands, one after the other."""

    def call() -> None:
        for operands in copies:
            layer(*operands)

    return call


if __name__ == "__main__":
    sys.exit(main())
