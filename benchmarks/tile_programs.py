"""Tile programs of TileLang on a GPU, beside the framework's library and the installed Triton.

Arms: `ours` is a compiled model that calls the program, with kernels from a folder that was filled
without a GPU; `triton` is the same call in eager mode, compiled by the installed Triton; `library`
is PyTorch's own operator. The arms take turns; each is the median of CUDA events.

Usage: python -m benchmarks.tile_programs build FOLDER [--target T]
       python -m benchmarks.tile_programs run FOLDER
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks.timing import median_ms, replayed
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.tilelang.function import TileFunction, tilelang_function
from tests.support.prepared_folder import offline, prepare
from tests.support.tile_programs import program_text
from tests.support.traced_graphs import recording
from tests.support.triton_without_gpu import as_with_a_gpu

_OPTIONS: Final = {"mode": "strict", "timeout_s": 2.0}
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Program:
    """A program's function, its arguments, the library's function, and its operations."""

    function: TileFunction
    arguments: Callable[[], Tensors]
    library: Callable[..., torch.Tensor]
    flops: float


def _halves(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def _linear(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, a, b).relu()


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _programs() -> Mapping[str, _Program]:
    square, heads = (4096, 4096), (4, 32, 4096, 128)
    return {
        "matmul + bias + ReLU, 4096 x 4096 x 4096": _Program(
            tilelang_function(program_text("matmul_large"), outputs=[-1]),
            lambda: (_halves(*square, seed=0), _halves(*square, seed=1), _halves(4096, seed=2)),
            _linear,
            2 * 4096.0**3,
        ),
        "causal attention, 4 x 32 x 4096 x 128": _Program(
            tilelang_function(program_text("attention_large"), outputs=[-1]),
            lambda: tuple(_halves(*heads, seed=seed) for seed in range(3)),
            _attention,
            2 * 2 * 4 * 32 * 4096.0**2 * 128 / 2,
        ),
    }


def _called(program: _Program) -> Callable[..., torch.Tensor]:
    """The program as a model calls it."""

    def model(*args: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = program.function(*args)
        return result

    return model


def _build(folder: Path, target: str) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    graphs = {}
    for name, program in _programs().items():
        found: list[CapturedGraph] = []
        torch._dynamo.reset()
        with as_with_a_gpu(), torch.no_grad():
            backend = recording(found, runs=False)
            torch.compile(_called(program), backend=backend, dynamic=False)(*program.arguments())
        graphs[name] = [captured.graph for captured in found]
    prepared = prepare(graphs.items(), folder, target, {})
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure[:600]}")
    return 1 if prepared.failures else 0


def _run(folder: Path) -> int:
    print(torch.cuda.get_device_name(), torch.__version__)
    print("| program | error | library's | ours, ms | triton, ms | library, ms | library / ours |")
    print("|---|---|---|---:|---:|---:|---:|")
    with offline(folder), torch.no_grad():
        for name, program in _programs().items():
            print(_row(name, program), flush=True)
    return 0


def _row(name: str, program: _Program) -> str:
    torch._dynamo.reset()
    args = tuple(tensor.cuda() for tensor in program.arguments())
    model = torch.compile(
        _called(program), backend="kernelfarm", dynamic=False, options=dict(_OPTIONS)
    )
    few = tuple(tensor[:1, :2] if tensor.dim() == 4 else tensor for tensor in args)
    exact = program.library(*(tensor.double() for tensor in few))
    errors = [
        (result[:1, :2] if result.dim() == 4 else result).double().sub(exact).abs().max().item()
        for result in (model(*args), program.library(*args))
    ]
    arms = {
        "ours": lambda: model(*args),
        "triton": lambda: program.function(*args),
        "library": lambda: program.library(*args),
    }
    times = median_ms(
        {arm: replayed(call) for arm, call in arms.items()}, "cuda", rounds=7, calls=20
    )
    teraflops = program.flops / times["ours"] / 1e9
    shown = " | ".join(f"{times[arm]:.3f}" for arm in arms)
    ratio = times["library"] / times["ours"]
    title = f"{name} ({teraflops:.0f} TFLOP/s)"
    return f"| {title} | {errors[0]:.1e} | {errors[1]:.1e} | {shown} | {ratio:.2f} |"


def main() -> int:
    """Fills a folder, or measures its programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cuda:sm_90a")
    options = parser.parse_args()
    if options.command == "build":
        return _build(options.folder, options.target)
    return _run(options.folder)


if __name__ == "__main__":
    sys.exit(main())
