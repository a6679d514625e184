"""Triton kernels of users on a GPU, with programs prepared where there is none.

Each case calls kernels in a model. The result must be as near to the exact one as that of eager,
which launches the same kernels by Triton itself.

Usage: python -m tests.gpu.user_kernels build FOLDER [--target T]
       python -m tests.gpu.user_kernels run FOLDER [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.runtime.tuning import WINNERS
from kernelfarm.client.tilelang.function import tilelang_function
from kernelfarm.ir.graph_ir import Graph
from tests.gpu.case import floats
from tests.support.prepared_folder import canonical_text, offline, prepare
from tests.support.tile_programs import program_text
from tests.support.traced_graphs import recording
from tests.support.triton_without_gpu import as_with_a_gpu
from tests.support.tutorial_kernels import (
    add_to,
    add_vectors,
    attention,
    described_matmul,
    layer_norm,
    matmul,
    softmax_rows,
    tuned_matmul,
)

OPTIONS = {"mode": "strict", "timeout_s": 2.0}
EAGER, MEASURED = "runner.eager_calls", "tuning.measured"
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class UserKernelCase:
    """A function that calls kernels, its arguments, and the same without kernels, in any type.

    `tolerance` is the largest difference from the exact result, relative to its largest element.
    A case that `is_tuned` must measure its configurations, with and without CUDA graphs.
    """

    name: str
    function: Callable[..., torch.Tensor]
    arguments: Callable[[], Tensors]
    exact: Callable[..., torch.Tensor]
    tolerance: float
    dynamic: bool = False
    is_tuned: bool = False


def _sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out, n = torch.empty_like(x), x.numel()
    add_vectors[(triton.cdiv(n, 1024),)](x.sin(), y, out, n, BLOCK=1024)
    return out * 2


def _unaligned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out, n = torch.empty_like(x[1:]), x.numel() - 1
    add_vectors[(triton.cdiv(n, 256),)](x[1:], y[1:], out, n, BLOCK=256)
    return out


def _in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total, n = x * 2, x.numel()
    add_vectors[(triton.cdiv(n, 1024),)](total, y, total, n, BLOCK=1024)
    return total + x


def _softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    rows, columns = x.shape
    sizes = (x.stride(0), out.stride(0), rows, columns)
    softmax_rows[(32,)](out, x, *sizes, BLOCK=1024, STAGES=2, num_warps=8)
    return out


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _product(matmul, a, b)


def _tuned_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _product(tuned_matmul, a, b)


def _product(kernel: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)

    strides = (*a.stride(), *b.stride(), *c.stride())
    kernel[grid](a, b, c, m, n, k, *strides, ACTIVATION="leaky_relu")
    return c


def _added_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A sum that each launch would change again, if its tensor were not restored."""
    total, n = x * 2, x.numel()
    add_to[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](total, y, n)
    return total


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y, (rows, n) = torch.empty_like(x), x.shape
    mean = torch.empty(rows, dtype=torch.float32, device=x.device)
    rstd = torch.empty_like(mean)
    layer_norm[(rows,)](x, y, w, b, mean, rstd, x.stride(0), n, 1e-5, BLOCK=1024)
    return y


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads, n, depth = q.shape
    out = torch.empty_like(q)
    lse = torch.empty(heads, n, dtype=torch.float32, device=q.device)
    sizes = (q.stride(0), q.stride(1), n, depth**-0.5)
    attention[(triton.cdiv(n, 64), heads)](q, k, v, out, lse, *sizes, BM=64, BN=32, D=depth)
    return out


def _described(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[0]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    described_matmul[(triton.cdiv(m, 64), triton.cdiv(n, 64))](
        a, b, c, m, n, k, BM=64, BN=64, BK=64
    )
    return c


_tile_add = tilelang_function(program_text("matrix_add"), outputs=[2])
_tile_matmul = tilelang_function(program_text("matmul_large"), outputs=[-1])
_tile_attention = tilelang_function(program_text("attention"), outputs=[-1])
_tile_varying = tilelang_function(program_text("matmul_varying"), outputs=[-1])


def _added_tiles(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _tile_add(a, b) * 2


def _tiles(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return _tile_matmul(a, b, bias) * 2


def _tiled_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _tile_attention(q, k, v) + 1


def _varying_tiles(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _tile_varying(a, b).abs()


def _halves(*shape: int, seed: int = 0) -> torch.Tensor:
    return floats(*shape, dtype=torch.float16, seed=seed)


def all_user_kernels() -> Iterator[UserKernelCase]:
    """Every case."""
    pair = lambda: (floats(98432), floats(98432, seed=1))  # noqa: E731 (used three times)
    yield UserKernelCase("a sum", _sum, pair, lambda x, y: (x.sin() + y) * 2, 1e-6)
    yield UserKernelCase(
        "a sum of varying length", _sum, pair, lambda x, y: (x.sin() + y) * 2, 1e-6, dynamic=True
    )
    yield UserKernelCase("unaligned", _unaligned, pair, lambda x, y: (x + y)[1:], 1e-6)
    yield UserKernelCase("in place", _in_place, pair, lambda x, y: 3 * x + y, 1e-6)
    yield UserKernelCase(
        "softmax", _softmax, lambda: (floats(1823, 781),), lambda x: x.softmax(-1), 1e-5
    )
    yield UserKernelCase(
        "matmul",
        _matmul,
        lambda: (_halves(512, 384), _halves(384, 256, seed=1)),
        lambda a, b: torch.nn.functional.leaky_relu(a @ b),
        2e-3,
        is_tuned=True,
    )
    yield UserKernelCase(
        "autotuned matmul",
        _tuned_matmul,
        lambda: (_halves(1024, 512), _halves(512, 768, seed=1)),
        lambda a, b: torch.nn.functional.leaky_relu(a @ b),
        2e-3,
        is_tuned=True,
    )
    yield UserKernelCase(
        "autotuned, with a value to restore",
        _added_in_place,
        pair,
        lambda x, y: 2 * x + y,
        1e-6,
        is_tuned=True,
    )
    yield UserKernelCase(
        "matmul of a transposed operand",
        _matmul,
        lambda: (_halves(512, 384), _halves(256, 384, seed=1).t()),
        lambda a, b: torch.nn.functional.leaky_relu(a @ b),
        2e-3,
        is_tuned=True,
    )
    yield UserKernelCase(
        "layer norm",
        _layer_norm,
        lambda: (floats(1151, 2048), floats(2048, seed=1), floats(2048, seed=2)),
        lambda x, w, b: torch.nn.functional.layer_norm(x, (2048,), w, b, 1e-5),
        1e-5,
    )
    yield UserKernelCase(
        "attention",
        _attention,
        lambda: tuple(_halves(4, 512, 64, seed=seed) for seed in range(3)),
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        3e-3,
    )
    yield UserKernelCase(
        "tensor descriptors",
        _described,
        lambda: (_halves(512, 384), _halves(256, 384, seed=1)),
        lambda a, b: a @ b.t(),
        2e-3,
    )
    yield UserKernelCase(
        "a tile program: matrix addition",
        _added_tiles,
        lambda: (floats(100, 70), floats(100, 70, seed=1)),
        lambda a, b: (a + b) * 2,
        1e-6,
    )
    yield UserKernelCase(
        "a tile program: matmul",
        _tiles,
        lambda: (*(_halves(4096, 4096, seed=seed) for seed in range(2)), _halves(4096, seed=2)),
        lambda a, b, bias: torch.relu(a @ b + bias) * 2,
        2e-3,
    )
    yield UserKernelCase(
        "a tile program: attention",
        _tiled_attention,
        lambda: tuple(_halves(2, 2, 128, 32, seed=seed) for seed in range(3)),
        lambda q, k, v: (
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True) + 1
        ),
        3e-3,
    )
    yield UserKernelCase(
        "a tile program: rows of varying number",
        _varying_tiles,
        lambda: (_halves(77, 64), _halves(64, 48, seed=1)),
        lambda a, b: (a @ b).abs(),
        2e-3,
        dynamic=True,
    )


def graphs_of(case: UserKernelCase) -> list[Graph]:
    """The graphs of a case, captured on the CPU without running the kernels."""
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    with as_with_a_gpu(), torch.no_grad():
        backend = recording(found, runs=False)
        torch.compile(case.function, backend=backend, dynamic=case.dynamic)(*case.arguments())
    return [captured.graph for captured in found]


def problem_of(case: UserKernelCase, device: torch.device, options: dict[str, Any]) -> str:
    """What is wrong with a case on a GPU; empty if it is right."""
    problem = _problem(case, device, options)
    if problem or not case.is_tuned:
        return problem
    return _problem(case, device, {**options, "cuda_graphs": True})


def _problem(case: UserKernelCase, device: torch.device, options: dict[str, Any]) -> str:
    torch._dynamo.reset()
    WINNERS.clear()
    given = case.arguments()
    on_device = tuple(tensor.to(device) for tensor in given)
    before = counters.snapshot()
    run = torch.compile(case.function, backend="kernelfarm", dynamic=case.dynamic, options=options)
    with torch.no_grad():
        # With CUDA graphs, the next call overwrites the result of one.
        results = [run(*on_device).clone() for _ in range(3)]
    exact = case.exact(*(tensor.double() for tensor in given))
    scale = exact.abs().max().item()
    errors = [(result.cpu().double() - exact).abs().max().item() / scale for result in results]
    if max(errors) > case.tolerance:
        return f"errors {errors}; expected at most {case.tolerance}"
    after = counters.snapshot()
    if after.get(EAGER, 0) != before.get(EAGER, 0):
        return "some calls ran eager"
    measured = after.get(MEASURED, 0) - before.get(MEASURED, 0)
    if measured != case.is_tuned:
        return f"configurations were measured {measured} times; expected {int(case.is_tuned)}"
    return ""


def main() -> int:
    """Fills a folder, or runs its programs; 1 if a case is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--json", type=Path, help="(run) where to write what became of each case")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    return (_build if options.command == "build" else _run)(options)


def _build(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    named = ((case.name, graphs_of(case)) for case in all_user_kernels())
    prepared = prepare(named, options.folder, options.target, {})
    for name, failure in prepared.failures.items():
        print(f"{name}: {failure[:600]}")
    print(f"{len(prepared.graphs)} cases, {len(prepared.failures)} failed")
    return 1 if prepared.failures else 0


def _run(options: argparse.Namespace) -> int:
    found: dict[str, str] = {}
    with offline(options.folder) as prepared:
        for case in all_user_kernels():
            try:
                graphs = [canonical_text(graph) for graph in graphs_of(case)]
                same = graphs == prepared.graphs[case.name]
                problem = problem_of(case, torch.device("cuda:0"), OPTIONS)
                found[case.name] = problem or ("" if same else "its graph differs")
            except Exception:  # the other cases are run, too
                found[case.name] = traceback.format_exc()[-1500:]
            print(f"{case.name}: {found[case.name] or 'right'}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
