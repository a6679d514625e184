"""Products in register tiles, compared with the framework's library on the CPU.

The numbers are those of `[tiles]` in the files of CPU targets: for each number of rows, the time of
the library as a multiple of a kernel's. `linear` has a weight (n, k), `columns` a weight (k, n);
`gelu` adds a bias and computes GELU, which the library leaves to other code. Products of 8-bit
integers are `linear` and `columns`, in i32, and `scaled` and `scaled-columns`, with a scale of each
row and column and a bias behind them. Their library's arm is a program whose product is a step of
the library, so a kernel computes what follows it; their errors are the largest difference from
eager. Arms take turns in one process. With --cold, copies of the weights take turns, so that they
come from memory. With --varying, one kernel computes all numbers of rows. To price
`cpu:x86-64-v3` on a machine with AVX-512, the library must be held to AVX2, too:
MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2.

Usage: python -m benchmarks.tiled_products [--target T] [--threads N] [--rows M ...]
           [--weights NxK ...] [--cases C ...] [--type f32|bf16|f16|i8] [--cold]
           [--varying]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from benchmarks.products import rotated
from benchmarks.skinny_products import ROUNDS, Measured
from benchmarks.timing import median_ms
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.targets import TargetFacts, TileFacts, TileTimes, target_facts
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import traced_one

_COLD_BYTES = 160 << 20

Layer = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is multiplied: by weights from memory if it is cold, by a varying number of rows."""

    dtype: torch.dtype
    is_cold: bool
    is_varying: bool


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight)


def _columns(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


def _gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


def _linear_bytes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(x.view(x.shape), weight.t())


def _columns_bytes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(x, weight)


def _scaled_bytes(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    return _linear_bytes(x, weight) * x_scale * scale + bias


def _scaled_columns_bytes(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    return torch._int_mm(x, weight) * x_scale * scale + bias


LAYERS: dict[str, Layer] = {"linear": _linear, "columns": _columns, "gelu": _gelu}
LAYERS_OF_BYTES: dict[str, Layer] = {
    "linear": _linear_bytes,
    "columns": _columns_bytes,
    "scaled": _scaled_bytes,
    "scaled-columns": _scaled_columns_bytes,
}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8}


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    facts = always_in_tiles(target_facts(options.target))
    dtype = TYPES[options.type]
    print(
        f"{'case':<14}      n      k      m  kernel GFLOP/s  library GFLOP/s  speed-up  error ratio"
    )
    layers = LAYERS_OF_BYTES if dtype is torch.int8 else LAYERS
    for case in options.cases or layers:
        for n, k in (map(int, shape.split("x")) for shape in options.weights):
            for m in options.rows:
                kind = _Kind(dtype, is_cold=options.cold, is_varying=options.varying)
                _print(case, (m, n, k), kind, facts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=host_cpu_target())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="*", default=[8, 16, 32, 128, 512])
    weights = ["128x128", "768x768", "3072x768", "768x3072"]
    parser.add_argument("--weights", nargs="*", default=weights)
    parser.add_argument("--cases", nargs="*", choices={**LAYERS, **LAYERS_OF_BYTES})
    parser.add_argument("--type", choices=TYPES, default="f32")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--varying", action="store_true")
    return parser.parse_args()


def always_in_tiles(facts: TargetFacts) -> TargetFacts:
    """The facts of a target whose kernels compute all products that they can in tiles."""
    table = (("1", 2.0),)
    times = TileTimes(1, library=table, library_columns=table)
    return replace(facts, tiles=TileFacts(times, times, times, times))


def _print(case: str, sizes: tuple[int, int, int], kind: _Kind, facts: TargetFacts) -> None:
    (m, n, k), dtype = sizes, kind.dtype
    args = _bytes_of(case, m, n, k) if dtype is torch.int8 else _floats_of(case, m, n, k, dtype)
    layers = LAYERS_OF_BYTES if dtype is torch.int8 else LAYERS
    size_bytes = n * k * dtype.itemsize
    copies = max(2, -(-_COLD_BYTES // size_bytes)) if kind.is_cold else 1
    found = measured(layers[case], args, facts, copies, is_varying=kind.is_varying)
    operations = 2 * m * n * k / 1e6
    print(
        f"{case:<14}{n:>7}{k:>7}{m:>7}{operations / found.kernel_ms:>16.0f}"
        f"{operations / found.library_ms:>17.0f}{found.library_ms / found.kernel_ms:>10.2f}"
        f"{found.kernel_error / found.library_error:>13.2f}",
        flush=True,
    )


def _floats_of(case: str, m: int, n: int, k: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Arguments of a layer of floats."""
    weight = torch.randn((k, n) if case == "columns" else (n, k)) / k**0.5
    bias = [torch.randn(n)] if case == "gelu" else []
    return [tensor.to(dtype) for tensor in (torch.randn(m, k), weight, *bias)]


def _bytes_of(case: str, m: int, n: int, k: int) -> list[torch.Tensor]:
    """Arguments of a layer of 8-bit integers."""
    shapes = ((m, k), (k, n) if case.endswith("columns") else (n, k))
    args = [torch.randint(-128, 128, shape, dtype=torch.int8) for shape in shapes]
    if case.startswith("scaled"):
        args += [torch.rand(m, 1) / 127, torch.rand(n) / k, torch.randn(n)]
    return args


def measured(
    layer: Layer,
    args: list[torch.Tensor],
    facts: TargetFacts,
    copies: int = 1,
    *,
    is_varying: bool = False,
) -> Measured:
    """Times and errors of a layer, whose weight has so many copies that take turns.

    Raises:
        RuntimeError: the program calls the library.
    """
    counts, sizes = Counts(), []
    if is_varying:
        torch._dynamo.mark_dynamic(args[0], 0)
        sizes.append(args[0].shape[0])
    run = compile_here(traced_one(layer, *args), counts, facts)
    if counts.externs:
        raise RuntimeError(f"the program calls {counts.externs}; expected kernels alone")
    library: Layer = layer
    is_of_bytes = args[1].dtype is torch.int8
    if is_of_bytes:
        theirs = compile_here(traced_one(layer, *args), Counts(), replace(facts, tiles=None))
        library = _called(theirs, sizes)
    turns = [tuple([args[0], args[1].clone(), *args[2:]]) for _ in range(copies)]
    arms = {
        "kernel": rotated(_called(run, sizes), turns),
        "library": rotated(library, turns),
    }
    calls = max(1, min(40, 1_000_000_000 // (copies * args[0].shape[0] * args[1].numel())))
    times = {
        arm: ms / copies for arm, ms in median_ms(arms, "cpu", rounds=ROUNDS, calls=calls).items()
    }
    ours, eager = run([*sizes, *args])[0], layer(*args)
    if is_of_bytes:
        error = (ours.double() - eager.double()).abs().max().item()
        return Measured(times["kernel"], times["library"], error, 1.0)
    exact = layer(*(tensor.double() for tensor in args))
    errors = ((y.double() - exact).abs().max().item() for y in (ours, eager))
    return Measured(times["kernel"], times["library"], *errors)


def _called(run: Callable[[list[object]], list[torch.Tensor]], sizes: list[int]) -> Layer:
    return lambda *given: run([*sizes, *given])[0]


if __name__ == "__main__":
    main()
