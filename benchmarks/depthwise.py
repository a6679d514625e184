"""Depthwise convolutions, compared with the framework's on the CPU.

A bias and ReLU follow. Arms, which take turns in one process: the library with a plain weight
(`eager`, channels last), with a packed one (`packed`, as in frozen models without kernels; in f32,
between conversions, types that the library computes faster so), and kernels (`ours`). The table
`[depthwise]` in the files of targets states where kernels are faster.

Usage: python -m benchmarks.depthwise [--type T] [--threads N] [--batch N] [--cases CxSxKxD ...]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.timing import Call, median_ms
from kernelfarm.client.freezing.depthwise_weights import ordered_window
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.client.pytorch.private.operators import packed_operators
from kernelfarm.client.runtime import arena
from kernelfarm.targets import target_facts
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import traced_one

ROUNDS = 9
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
CASES = (
    # ConvNeXt-tiny.
    *("96x56x7x1", "192x28x7x1", "384x14x7x1", "768x7x7x1"),
    # MobileNetV3-large.
    *("16x112x3x1", "64x112x3x2", "72x56x3x1", "72x56x5x2", "120x28x5x1", "240x28x3x2"),
    *("200x14x3x1", "184x14x3x1", "480x14x3x1", "672x14x3x1", "672x14x5x2", "960x7x5x1"),
    # EfficientNet-B0.
    *("32x112x3x1", "96x112x3x2", "144x56x3x1", "144x56x5x2", "240x28x5x1", "480x14x5x1"),
    *("672x14x5x1", "1152x7x5x1", "1152x7x3x1"),
)
"""Channels, the side of an image and that of a window in pixels, and strides."""
_MANY_MULTIPLIES = 50_000_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--type", choices=TYPES, default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=CASES)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    print(
        "channels x side x window x strides: microseconds of eager, packed, ours; GMAC/s of ours;"
    )
    print("eager / ours, packed / ours; errors of ours by eager's")
    for case in options.cases:
        numbers = (options.batch, *map(int, case.split("x")))
        print(f"{case:<12}{_figures(TYPES[options.type], numbers)}", flush=True)


def _figures(dtype: torch.dtype, numbers: tuple[int, ...]) -> str:
    images, channels, side, window, stride = numbers
    x = torch.randn(images, channels, side, side).to(dtype, memory_format=torch.channels_last)
    weight = (torch.randn(channels, 1, window, window) / window).to(dtype)
    bias = torch.randn(channels).to(dtype)
    arms: dict[str, Call] = {
        "eager": lambda: _direct(x, weight, bias, stride),
        "packed": _packed(x, weight, bias, stride),
        "ours": _ours(x, weight, bias, stride),
    }
    exact = _direct(x.double(), weight.double(), bias.double(), stride)
    errors = [(arms[arm]() - exact).abs().max().item() for arm in ("ours", "eager")]  # type: ignore[operator]  # tensors
    multiplies = exact.numel() * window**2
    is_slow = dtype is not torch.float32
    calls = 1 if is_slow else max(1, min(20, _MANY_MULTIPLIES // multiplies))
    arena.release()
    us = {arm: 1e3 * ms for arm, ms in median_ms(arms, "cpu", rounds=ROUNDS, calls=calls).items()}
    times = "".join(f"{us[arm]:9.0f}" for arm in arms)
    rates = f"{multiplies / us['ours'] / 1e3:7.1f}"
    ratios = "".join(f"{us[arm] / us['ours']:8.2f}" for arm in ("eager", "packed"))
    return f"{times}{rates}{ratios}{errors[0] / errors[1]:8.2f}"


def _direct(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    channels, padding = weight.shape[0], weight.shape[-1] // 2
    return functional.relu(
        functional.conv2d(x, weight, bias, stride=stride, padding=padding, groups=channels)
    )


def _packed(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Call:
    """The library's call with a packed weight, in f32 if the target's facts widen its type.

    Raises:
        RuntimeError: PyTorch lacks oneDNN.
    """
    operators = packed_operators()
    if operators is None:
        raise RuntimeError("this PyTorch has no oneDNN; expected one with packed weights")
    channels, padding = weight.shape[0], weight.shape[-1] // 2
    window = [padding, padding], [stride, stride], [1, 1], channels
    own = torch.float32 if _is_widened(x.dtype) else x.dtype
    turned = operators.pack_convolution(weight.to(own), *window, list(x.shape))
    typed = bias.to(own)

    def call() -> Tensor:
        found: Tensor = operators.convolution(x.to(own), turned, typed, *window, "relu", [], "")
        return found.to(x.dtype)

    return call


def _is_widened(dtype: torch.dtype) -> bool:
    """True if frozen models compute packed convolutions of a type in f32, or have none of it."""
    known = target_facts(host_cpu_target()).convolutions
    stated = () if known is None else known.widened
    return dtype is torch.float16 or dtype_from_torch(dtype).value in stated


def _ours(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Call:
    """The kernels' call, with a weight in their order.

    Raises:
        RuntimeError: the program calls the library.
    """
    turned, counts = ordered_window(weight).permute(2, 0, 1).unsqueeze(1), Counts()

    def layer(x: Tensor, turned: Tensor, bias: Tensor) -> Tensor:
        return _direct(x, turned, bias, stride)

    run = compile_here(traced_one(layer, x, turned, bias), counts, target_facts(host_cpu_target()))
    if counts.externs:
        raise RuntimeError(f"the program calls {counts.externs}; expected kernels alone")
    return lambda: run([x, turned, bias])[0]


if __name__ == "__main__":
    main()
