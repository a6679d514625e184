"""Convolutions by Winograd's algorithm, compared with the framework's direct ones on the CPU.

Windows have 3 x 3 pixels, images one pixel of padding; a bias and ReLU follow. Arms, which take
turns in one process: the library with a plain weight (`eager`, channels last), with a packed one
(`packed`, as in frozen models without the algorithm), and kernels (`ours`). The table `[winograd]`
in the files of targets states where kernels are faster.

Usage: python -m benchmarks.winograd [--threads N] [--cases NxCxKxS ...] [--grid]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.timing import Call, median_ms
from kernelfarm.client.custom_operators.winograd import WINOGRAD, transformed_weight
from kernelfarm.client.freezing.order_weights import order_of_tiles
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.pytorch.private.operators import packed_operators
from kernelfarm.client.runtime import arena
from kernelfarm.dtypes import DType
from kernelfarm.targets import target_facts
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import traced_one

ROUNDS = 11
CASES = (
    # ResNet-50.
    *("1x64x64x56", "1x128x128x28", "1x256x256x14", "1x512x512x7"),
    *("8x64x64x56", "8x128x128x28", "8x256x256x14", "8x512x512x7"),
    # The detector of examples/detector.py, for 320 x 320 pixels.
    *("1x16x16x80", "1x32x32x40", "1x64x64x20", "1x128x128x10"),
    *("1x64x64x40", "1x64x80x40", "1x80x80x40", "1x128x80x20", "1x256x64x10"),
)
"""Images, channels before and after, and the side of an image in pixels."""
_GRID_CHANNELS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_GRID_SIDES = (5, 7, 10, 14, 20, 28, 40, 56, 80, 112)
_MOST_MULTIPLIES = 500_000_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=CASES)
    parser.add_argument("--grid", action="store_true", help="one image of many sizes instead")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    print("images x channels x results x side: microseconds of eager, packed, ours; packed / ours;")
    print("errors of ours by eager's")
    for case in _grid() if options.grid else options.cases:
        print(f"{case:<16}{_figures(*map(int, case.split('x')))}", flush=True)


def _grid() -> Iterator[str]:
    for channels in _GRID_CHANNELS:
        for side in _GRID_SIDES:
            if (3 * side * channels) ** 2 <= _MOST_MULTIPLIES:
                yield f"1x{channels}x{channels}x{side}"


def _figures(images: int, channels: int, results: int, side: int) -> str:
    x = torch.randn(images, channels, side, side).to(memory_format=torch.channels_last)
    weight = torch.randn(results, channels, 3, 3) / (9 * channels) ** 0.5
    bias = torch.randn(results)
    arms: dict[str, Call] = {
        "eager": lambda: _direct(x, weight, bias),
        "packed": _packed(x, weight, bias),
        "ours": _ours(x, weight, bias),
    }
    exact = _direct(x.double(), weight.double(), bias.double())
    errors = [(arms[arm]() - exact).abs().max().item() for arm in ("ours", "eager")]  # type: ignore[operator]  # tensors
    multiplies = images * (3 * side) ** 2 * channels * results
    calls = max(1, min(20, 500_000_000 // multiplies))
    arena.release()
    us = {arm: 1e3 * ms for arm, ms in median_ms(arms, "cpu", rounds=ROUNDS, calls=calls).items()}
    times = "".join(f"{us[arm]:9.0f}" for arm in arms)
    return f"{times}{us['packed'] / us['ours']:8.2f}{errors[0] / errors[1]:8.2f}"


def _direct(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.relu(functional.conv2d(x, weight, bias, padding=1))


def _packed(x: Tensor, weight: Tensor, bias: Tensor) -> Call:
    """The library's call with a packed weight.

    Raises:
        RuntimeError: PyTorch lacks oneDNN.
    """
    operators = packed_operators()
    if operators is None:
        raise RuntimeError("this PyTorch has no oneDNN; expected one with packed weights")
    window = [1, 1], [1, 1], [1, 1], 1
    turned = operators.pack_convolution(weight, *window, list(x.shape))
    return lambda: operators.convolution(x, turned, bias, *window, "relu", [], "")


def _ours(x: Tensor, weight: Tensor, bias: Tensor) -> Call:
    """The kernels' call, with a transformed weight.

    Raises:
        RuntimeError: the program calls the library.
    """
    facts, results = target_facts(host_cpu_target()), weight.shape[0]
    order = order_of_tiles(results, DType.F32, facts)
    assert order is not None  # the target is a processor
    turned, counts = transformed_weight(weight, order.width), Counts()

    def layer(x: Tensor, turned: Tensor, bias: Tensor) -> Tensor:
        return functional.relu(WINOGRAD(x, turned, bias, results, 1))

    run = compile_here(traced_one(layer, x, turned, bias), counts, facts)
    if counts.externs:
        raise RuntimeError(f"the program calls {counts.externs}; expected kernels alone")
    return lambda: run([x, turned, bias])[0]


if __name__ == "__main__":
    main()
