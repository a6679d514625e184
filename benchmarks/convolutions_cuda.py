"""Convolutions on a GPU by kernels, beside eager and Inductor.

`build` compiles by a farm into a folder, without a GPU; `run` needs that folder and a GPU, but no
farm. Cases are layers of ResNet-50, EfficientNet-B0, a U-Net, DeepLabV3, ResNeXt-50 and RegNets,
channels last, with a batch norm and ReLU, and a residual if there is one. Arms: eager, our choice
(`ours`), our program with the library's convolution (`library`) and with ours (`own`), and
Inductor. Each is a replay of a CUDA graph in which copies of the operands take turns, so that they
come from memory. `copy` moves as many bytes as the layer.

Usage: python -m benchmarks.convolutions_cuda build FOLDER [--target T] [--images N]
       python -m benchmarks.convolutions_cuda run FOLDER [--images N] [--no-inductor]
       (with --only TEXT, both for some cases)
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.prepared_cases import (
    Layer,
    build,
    captured,
    compiled,
    many_compilations,
    parser_of,
    print_rows,
)
from benchmarks.products import rotated
from benchmarks.timing import median_ms, replayed
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.ir.product_choice import ProductChoice
from tests.support.prepared_folder import offline

ROUNDS, CALLS = 7, 3
_COLD_BYTES = 160 << 20
_MAX_COPIES = 16
_STRICT = {"mode": "strict", "timeout_s": 2.0}


@dataclass(frozen=True)
class Case:
    """Channels of the image and of the result, pixels of the image's side; if a residual is added.

    The window has `window` x `window` pixels, `dilation` pixels apart, and moves by `stride`. There
    are as many images as the command says, or `images`.
    """

    channels: int
    results: int
    pixels: int
    has_residual: bool = False
    window: int = 1
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    images: int = 0

    def __str__(self) -> str:
        residual = ", residual" * self.has_residual
        window = f", window {self.window}" if self.window * self.stride > 1 else ""
        window += f" by {self.stride}" if self.stride > 1 else ""
        window += f", dilation {self.dilation}" if self.dilation > 1 else ""
        window += f", {self.groups} groups" if self.groups > 1 else ""
        side, images = self.pixels, f", {self.images} images" if self.images else ""
        return f"{self.channels} to {self.results}, {side} x {side}{window}{residual}{images}"

    def convolve(self, image: Tensor, weight: Tensor, *others: Tensor) -> Tensor:
        """What a layer does."""
        padding = self.dilation * (self.window // 2)
        moves = (self.stride, padding, self.dilation, self.groups)
        return _behind(functional.conv2d(image, weight, None, *moves), *others)

    def operands(self, images: int, device: str) -> tuple[Tensor, ...]:
        """Image, weight, statistics, gain and bias of the norm, and the residual."""
        torch.manual_seed(0)
        images = self.images or images
        image = torch.randn(images, self.channels, self.pixels, self.pixels, device=device)
        shape = (self.results, self.channels // self.groups, self.window, self.window)
        weight = torch.randn(shape, device=device) / self.window
        vectors = torch.rand(4, self.results, device=device) + 0.5
        found = [image, weight, *vectors]
        if self.has_residual:
            pixels = -(-self.pixels // self.stride)
            found.append(torch.randn(images, self.results, pixels, pixels, device=device))
        narrow = (tensor.to(torch.bfloat16) for tensor in found)
        return tuple(_laid_out(tensor) for tensor in narrow)


def _laid_out(tensor: Tensor) -> Tensor:
    is_image = tensor.dim() == 4
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor.clone()


def _behind(found: Tensor, *others: Tensor) -> Tensor:
    """Batch norm with statistics, and ReLU of it with the residual."""
    mean, variance, gain, bias, *residual = others
    found = functional.batch_norm(found, mean, variance, gain, bias)
    return functional.relu(found + residual[0] if residual else found)


CASES = (
    Case(64, 64, 56),
    Case(256, 64, 56),
    Case(64, 256, 56, has_residual=True),
    Case(256, 128, 56),
    Case(512, 128, 28),
    Case(128, 512, 28, has_residual=True),
    Case(512, 256, 28),
    Case(1024, 256, 14),
    Case(256, 1024, 14, has_residual=True),
    Case(1024, 512, 14),
    Case(2048, 512, 7),
    Case(512, 2048, 7, has_residual=True),
    Case(16, 96, 112),
    Case(96, 24, 56),
    Case(24, 144, 56),
    Case(144, 40, 28, has_residual=True),
    Case(240, 80, 14),
    Case(480, 112, 14),
    Case(672, 192, 7),
    Case(1152, 320, 7),
    Case(3, 64, 224, window=7, stride=2),
    Case(3, 32, 224, window=3, stride=2),
    Case(64, 64, 56, window=3),
    Case(128, 128, 56, window=3, stride=2),
    Case(128, 128, 28, window=3),
    Case(256, 256, 28, window=3, stride=2),
    Case(256, 256, 14, window=3),
    Case(512, 512, 14, window=3, stride=2),
    Case(512, 512, 7, window=3),
    Case(256, 512, 56, stride=2),
    Case(512, 1024, 28, stride=2),
    Case(1024, 2048, 14, stride=2),
    Case(32, 64, 112, window=3, stride=2),
    Case(96, 96, 56, window=3),
    Case(128, 32, 28, window=3),
    Case(320, 320, 64, window=3),
    Case(320, 640, 32, window=3),
    Case(640, 640, 32, window=3),
    Case(640, 640, 32, has_residual=True, window=3),
    Case(1280, 1280, 16, window=3),
    Case(1280, 1280, 8, window=3),
    Case(960, 320, 64, window=3),
    Case(1920, 640, 32, window=3),
    Case(2560, 1280, 16, window=3),
    Case(256, 256, 32, window=3, dilation=2),
    Case(256, 256, 32, window=3, dilation=4),
    Case(512, 512, 33, has_residual=True, window=3, dilation=4, images=8),
    Case(2048, 256, 33, window=3, dilation=6, images=8),
    Case(2048, 256, 33, window=3, dilation=12, images=8),
    Case(2048, 256, 33, window=3, dilation=18, images=8),
    Case(128, 128, 56, window=3, groups=32),
    Case(256, 256, 28, window=3, groups=32),
    Case(512, 512, 14, window=3, groups=32),
    Case(1024, 1024, 14, window=3, stride=2, groups=32),
    Case(1024, 1024, 7, window=3, groups=32),
    Case(168, 168, 28, window=3, groups=7),
    Case(192, 192, 28, window=3, groups=4),
    Case(432, 432, 14, window=3, groups=9),
    Case(448, 448, 28, window=3, groups=4),
    Case(1232, 1232, 14, window=3, groups=11),
    Case(512, 512, 28, window=3, groups=8),
    Case(512, 512, 28, window=3, stride=2, groups=8),
)


def main() -> int:
    options = _options()
    warnings.simplefilter("ignore")
    with many_compilations(), torch.no_grad():
        return (_build if options.command == "build" else _run)(options)


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--only", default="")
    return parser.parse_args()


def _cases(options: argparse.Namespace) -> list[Case]:
    return [case for case in CASES if options.only in str(case)]


def _build(options: argparse.Namespace) -> int:
    graphs = (
        (str(case), captured(case.convolve, case.operands(options.images, "cpu")))
        for case in _cases(options)
    )
    return build(graphs, options, [CompileOptions(products=choice) for choice in ProductChoice])


def _run(options: argparse.Namespace) -> int:
    print(torch.cuda.get_device_name(), torch.__version__, f"{options.images} images")
    print("case: microseconds of a copy and of eager; eager / arm; errors of own and eager")
    with offline(options.folder):
        return print_rows(
            (f"{case!s:<38}", partial(_line, case, options)) for case in _cases(options)
        )


def _line(case: Case, options: argparse.Namespace) -> str:
    operands = case.operands(options.images, "cuda")
    arms = {"ours": "auto", "library": "library", "own": "own"}
    layers: dict[str, Layer] = {"eager": case.convolve}
    for arm, products in arms.items():
        stated = {**_STRICT, "products": products}
        layers[arm] = compiled(case.convolve, "kernelfarm", stated)
        layers[arm](*operands)
    if not options.no_inductor:
        layers["inductor"] = compiled(case.convolve, "inductor")
    results = {arm: layer(*operands) for arm, layer in layers.items()}
    exact = case.convolve(*(tensor.double() for tensor in operands))
    errors = " ".join(
        f"{((results[arm].double() - exact).abs().max() / exact.abs().max()).item():.1e}"
        for arm in ("own", "eager")
    )
    moved = [*operands, exact.to(torch.bfloat16)]
    size_bytes = sum(tensor.numel() * tensor.itemsize for tensor in moved)
    count = max(2, min(_MAX_COPIES, -(-_COLD_BYTES // size_bytes)))
    copies = [operands, *(tuple(x.clone() for x in operands) for _ in range(count - 1))]
    calls = {arm: replayed(rotated(called, copies)) for arm, called in layers.items()}
    plain = [(torch.empty(size_bytes // 2, dtype=torch.uint8, device="cuda"),) for _ in copies]
    calls["copy"] = replayed(rotated(torch.clone, plain))
    found = median_ms(calls, "cuda", rounds=ROUNDS, calls=CALLS)
    times = {arm: 1e3 * ms / count for arm, ms in found.items()}
    ratios = " ".join(
        f"{arm} {times['eager'] / us:5.2f}"
        for arm, us in times.items()
        if arm not in ("eager", "copy")
    )
    return f"{times['copy']:7.1f} {times['eager']:7.1f}  {ratios}  {errors}"


if __name__ == "__main__":
    sys.exit(main())
