"""One pass or two over long rows on the CPU: both forms of a kernel, and eager, in one run.

Softmax, log-sum-exp, variance and LayerNorm along rows and variance along columns (f32). Each
measurement alternates the three arms and takes the best of several rounds. The figures determine
`max_two_pass_elems` of the targets.

Usage: python -m benchmarks.row_statistics [--threads N] [--elems N] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from codegen_svc.backends.cpu.backend import BACKEND
from kernelfarm.client.loaders.cpu import CpuLoader
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.loop_ir import GUIDES, Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import TargetFacts, TwoPassLimits, target_facts
from optimizer_svc.ir.built_steps import BuiltSteps
from optimizer_svc.passes.reduce_in_one_pass import reduce_in_one_pass

ROUNDS = 7
LOADER = CpuLoader()
WIDTHS = (256, 4096, 65536, 262144, 1 << 20, 1 << 23)
COLUMN_WIDTHS = (256, 1024, 16384, 65536)
COLUMNS = 256

HEAD = (
    "kernel {name}\nparam in in0: f32[{rows}*{width}]\nparam out out0: f32[{size}]\n"
    "for d0 in {rows}\nreduce r0 in {width}\n  %0: f32 = load in0[{at}]\n"
)
BODIES = {
    "softmax": (
        "  %1: f32 = amax %0\n  %2: f32 = sub %0, %1\n  %3: f32 = exp %2\n  %4: f32 = sum %3\n"
        "  %5: f32 = div %3, %4\n  store out0[{at}] = %5\n"
    ),
    "logsumexp": (
        "  %1: f32 = amax %0\n  %2: f32 = sub %0, %1\n  %3: f32 = exp %2\n  %4: f32 = sum %3\n"
        "  %5: f32 = log %4\n  %6: f32 = add %5, %1\n  store out0[d0] = %6\n"
    ),
    "variance": (
        "  %1: f32 = sum %0\n  %2: f32 = {width}.0\n  %3: f32 = div %1, %2\n"
        "  %4: f32 = sub %0, %3\n  %5: f32 = mul %4, %4\n  %6: f32 = sum %5\n"
        "  %7: f32 = div %6, %2\n  store out0[d0] = %7\n"
    ),
    "layer_norm": (
        "  %1: f32 = sum %0\n  %2: f32 = {width}.0\n  %3: f32 = div %1, %2\n"
        "  %4: f32 = sub %0, %3\n  %5: f32 = mul %4, %4\n  %6: f32 = sum %5\n"
        "  %7: f32 = div %6, %2\n  %8: f32 = 1e-05\n  %9: f32 = add %7, %8\n"
        "  %10: f32 = rsqrt %9\n  %11: f32 = mul %4, %10\n  store out0[{at}] = %11\n"
    ),
}
EAGER: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "softmax": lambda x, dim: x.softmax(dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
    "variance": lambda x, dim: x.var(dim, correction=0),
    "layer_norm": lambda x, dim: torch.nn.functional.layer_norm(x, x.shape[dim:]),
}
CASES = (
    *((name, "rows", width) for name in BODIES for width in WIDTHS),
    *((name, "columns", width) for name in ("logsumexp", "variance") for width in COLUMN_WIDTHS),
)


@dataclass(frozen=True)
class Figures:
    """Milliseconds of one statistic over rows (or columns) of `width` elements."""

    name: str
    layout: str
    width: int
    one_pass_ms: float
    two_passes_ms: float
    eager_ms: float


def main() -> int:
    """Measures, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--elems", type=int, default=1 << 23)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{host_cpu_target()}, {options.threads} threads, {options.elems} elements at most")
    print("statistic  layout       width   one ms   two ms eager ms  two/one eager/one")
    found = []
    for name, layout, width in CASES:
        figures = measured(name, layout, width, options.elems, options.threads)
        found.append(figures)
        one, two, eager = figures.one_pass_ms, figures.two_passes_ms, figures.eager_ms
        print(
            f"{name:10} {layout:8} {width:9} {one:8.2f} {two:8.2f} {eager:8.2f}"
            f" {two / one:8.2f} {eager / one:9.2f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(f) for f in found], indent=1) + "\n")
    return 0


def measured(name: str, layout: str, width: int, elems: int, threads: int) -> Figures:
    """Milliseconds of the three arms, each the best of some alternating rounds."""
    rows = COLUMNS if layout == "columns" else max(1, elems // width)
    shape = (width, rows) if layout == "columns" else (rows, width)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    two = kernel_of(name, layout, rows, width)
    dim = 0 if layout == "columns" else 1

    def eager() -> torch.Tensor:
        return EAGER[name](x, dim)

    runs: list[Callable[[], object]] = [
        launcher(form, x, eager(), threads) for form in (in_one_pass(two), two)
    ]
    runs.append(eager)
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for position, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[position] = min(best[position], time.perf_counter() - start)
    return Figures(name, layout, width, *(1e3 * seconds for seconds in best))


def kernel_of(name: str, layout: str, rows: int, width: int) -> Kernel:
    """The statistic in two passes."""
    at = f"{rows}*r0 + d0" if layout == "columns" else f"{width}*d0 + r0"
    size = rows * width if "{at}" in BODIES[name] else rows
    text = HEAD + BODIES[name]
    return parse_kernel(text.format(name=name, rows=rows, width=width, size=size, at=at))


def in_one_pass(kernel: Kernel) -> Kernel:
    """The statistic in one pass, as the optimizer writes it if one pass is always better."""
    limits = TwoPassLimits(rows=0, columns=0, varying=True)
    facts: TargetFacts = replace(
        target_facts(host_cpu_target()), max_two_pass_elems=tuple((op, limits) for op in GUIDES)
    )
    (made,) = reduce_in_one_pass(BuiltSteps((kernel,), ()), facts).kernels
    return made


def launcher(
    kernel: Kernel, x: torch.Tensor, wanted: torch.Tensor, threads: int
) -> Callable[[], object]:
    """A call that runs the compiled kernel; its result has been compared with eager's."""
    variant = BACKEND.build(kernel, target_facts(host_cpu_target()))[-1]
    code = next(s.content for s in variant.stages if s.name == "so")
    loaded = LOADER.load(code, variant.launch)
    out = torch.empty(kernel.params[1].size_elems.as_int())
    table = (ctypes.c_void_p * 2)(x.data_ptr(), out.data_ptr())
    run = loaded.bind(())(ctypes.addressof(table), threads)

    def call() -> object:
        run()
        return out, loaded, table  # all must outlive the calls

    call()
    torch.testing.assert_close(out, wanted.reshape(-1), rtol=1e-4, atol=1e-5)
    return call


if __name__ == "__main__":
    raise SystemExit(main())
