"""Products with few rows by kernels, compared with the framework's library on the CPU.

The numbers are those of `[few_rows]` in the files of CPU targets: for each number of rows,
the time of both as a multiple of the time in which the library multiplies one row. Arms take turns
in one process. To price `cpu:x86-64-v3` on a machine with AVX-512, the library must be held to
AVX2, too: MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2.

Usage: python -m benchmarks.skinny_products [--target T] [--threads N] [--rows M ...]
           [--dtypes T ...] [--columns] [--bias]

`--columns` multiplies by weights whose columns are contiguous, `--bias` adds a bias.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.timing import median_ms
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.targets import FewRowFacts, ProductTimes, TargetFacts, target_facts
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import traced_one

WEIGHTS = ((768, 768), (3072, 768), (768, 3072), (4096, 4096), (50257, 768))
"""Rows and columns of weights (n, k): layers of BERT, GPT-2 and Llama, and a vocabulary."""
ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Measured:
    """The times of one product, and the largest errors against float64."""

    kernel_ms: float
    library_ms: float
    kernel_error: float
    library_error: float


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    facts = always_by_kernels(target_facts(options.target), max(options.rows))
    print(
        "dtype      n      k      m   kernel  library  in times of the library's first row;"
        "  speed-up  error ratio"
    )
    for dtype in options.dtypes:
        for shape in WEIGHTS:
            _print_weight(getattr(torch, dtype), shape, options, facts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=host_cpu_target())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="*", default=[*range(1, 13), 16])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--columns", action="store_true")
    parser.add_argument("--bias", action="store_true")
    return parser.parse_args()


def always_by_kernels(facts: TargetFacts, rows: int) -> TargetFacts:
    """The facts of a target whose kernels compute all products of up to so many rows."""
    times = ProductTimes(1, library=(("1", 2.0),), kernel=((str(rows), 1.0),))
    few_rows = FewRowFacts(times, times, times, times)
    return replace(facts, few_rows=few_rows, tiles=None)


def _print_weight(
    dtype: torch.dtype, shape: tuple[int, int], options: argparse.Namespace, facts: TargetFacts
) -> None:
    n, k = shape
    stored = torch.randn((k, n) if options.columns else shape).to(dtype)
    bias = [torch.randn(n).to(dtype)] if options.bias else []

    def product(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        return functional.linear(x, weight.t() if options.columns else weight, *bias)

    unit_ms = measured(product, [torch.randn(1, k).to(dtype), stored, *bias], facts).library_ms
    for m in options.rows:
        found = measured(product, [torch.randn(m, k).to(dtype), stored, *bias], facts)
        print(
            f"{str(dtype).removeprefix('torch.'):<9}{n:>6}{k:>7}{m:>5}"
            f"{found.kernel_ms / unit_ms:9.2f}{found.library_ms / unit_ms:9.2f}"
            f"{found.library_ms / found.kernel_ms:9.2f}"
            f"{found.kernel_error / found.library_error:9.2f}",
            flush=True,
        )


def measured(
    product: Callable[..., Tensor], operands: list[Tensor], facts: TargetFacts
) -> Measured:
    """Times and errors of a product of `operands`: rows, a weight, and perhaps a bias.

    Raises:
        RuntimeError: the program calls the library.
    """
    counts = Counts()
    captured = traced_one(product, *operands)
    run = compile_here(captured, counts, facts)
    if counts.externs:
        raise RuntimeError(f"the program calls {counts.externs}; expected kernels alone")
    # A graph has its inputs in the order of their uses; their shapes differ.
    by_shape = {tuple(operand.shape): operand for operand in operands}
    shapes = (tuple(int(str(n)) for n in given.kind.shape) for given in captured.graph.inputs)
    ordered = [by_shape[shape] for shape in shapes]
    arms = {"kernel": lambda: run(ordered), "library": lambda: product(*operands)}
    calls = max(1, min(40, 20_000_000 // operands[1].numel()))
    times = median_ms(arms, "cpu", rounds=ROUNDS, calls=calls)
    exact = product(*(operand.double() for operand in operands))
    ours, theirs = run(ordered)[0], product(*operands)
    errors = ((y.double() - exact).abs().max().item() for y in (ours, theirs))
    return Measured(times["kernel"], times["library"], *errors)


if __name__ == "__main__":
    main()
