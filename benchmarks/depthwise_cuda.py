"""Depthwise convolutions on a GPU by template kernels, beside eager and Inductor.

`build` compiles by a farm into a folder, without a GPU; `run` needs that folder and a GPU, but no
farm. Cases are layers of ConvNeXt-tiny, EfficientNet-B0 and MobileNetV3, channels last. Each arm is
a replay of a CUDA graph in which copies of the operands take turns, so that they come from memory:
of the convolution, and of its gradients. `copy` moves as many bytes as the layer.

`--only` chooses cases by a part of their names.

Usage: python -m benchmarks.depthwise_cuda build FOLDER [--target T] [--types T ...] [--images N]
           [--only TEXT]
       python -m benchmarks.depthwise_cuda run FOLDER [--types T ...] [--images N] [--only TEXT]
           [--no-inductor]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from tests.support.prepared_folder import offline

ROUNDS, CALLS = 7, 3
_COLD_BYTES = 160 << 20
_MAX_COPIES = 16
_STRICT = {"mode": "strict", "timeout_s": 2.0}


@dataclass(frozen=True)
class Case:
    """Channels, pixels of a side of the image, pixels of a side of the window, and its stride."""

    channels: int
    pixels: int
    window: int
    stride: int = 1

    def __str__(self) -> str:
        image = f"{self.channels} x {self.pixels} x {self.pixels}"
        return f"{image}, window {self.window}, stride {self.stride}"

    def convolve(self, image: Tensor, weight: Tensor) -> Tensor:
        """What a layer does; a kernel reads its result."""
        padding = self.window // 2
        return functional.conv2d(image, weight, None, self.stride, padding, groups=self.channels)

    def gradients(self, gradient: Tensor, image: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the image and of the weight."""
        pair = [self.stride] * 2
        padding = [self.window // 2] * 2
        found = torch.ops.aten.convolution_backward(
            *(gradient, image, weight, None, pair, padding, [1, 1], False, [0, 0], self.channels),
            (True, True, False),
        )
        return found[0], found[1]

    def operands(self, images: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
        """The gradient of the result, the image and the weight."""
        torch.manual_seed(0)
        shape = (images, self.channels, self.pixels, self.pixels)
        image = torch.randn(shape, device=device).to(dtype)
        image = image.contiguous(memory_format=torch.channels_last)
        weight = torch.randn(self.channels, 1, self.window, self.window, device=device).to(dtype)
        gradient = torch.randn_like(self.convolve(image, weight))
        return gradient.contiguous(memory_format=torch.channels_last), image, weight


CASES = (
    Case(96, 56, 7),
    Case(192, 28, 7),
    Case(384, 14, 7),
    Case(768, 7, 7),
    Case(32, 112, 3),
    Case(96, 112, 3, 2),
    Case(144, 56, 3),
    Case(144, 56, 5, 2),
    Case(240, 28, 5),
    Case(240, 28, 3, 2),
    Case(480, 14, 3),
    Case(480, 14, 5),
    Case(672, 14, 5),
    Case(672, 14, 5, 2),
    Case(1152, 7, 5),
    Case(1152, 7, 3),
)


def main() -> int:
    options = _options()
    warnings.simplefilter("ignore")
    with many_compilations(), torch.no_grad():
        return (_build if options.command == "build" else _run)(options)


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--types", nargs="*", default=["bfloat16"])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--only", default="")
    return parser.parse_args()


def _layers(case: Case) -> dict[str, tuple[Layer, int]]:
    """Each layer with the number of its first operand."""
    return {"convolution": (case.convolve, 1), "gradients": (case.gradients, 0)}


def _cases(
    options: argparse.Namespace, device: str
) -> Iterator[tuple[str, Layer, tuple[Tensor, ...]]]:
    """Name, layer and operands of each case in each type."""
    for dtype in options.types:
        for case in (case for case in CASES if options.only in str(case)):
            operands = case.operands(options.images, getattr(torch, dtype), device)
            for name, (layer, first) in _layers(case).items():
                yield f"{dtype} {case!s:<38} {name:<11}", layer, operands[first:]


def _build(options: argparse.Namespace) -> int:
    graphs = ((name, captured(layer, given)) for name, layer, given in _cases(options, "cpu"))
    return build(graphs, options)


def _run(options: argparse.Namespace) -> int:
    print(torch.cuda.get_device_name(), torch.__version__, f"{options.images} images")
    print("case: microseconds of a copy and of eager; eager / arm; errors of ours and eager")
    with offline(options.folder):
        return print_rows(
            (name, partial(_line, layer, given, options))
            for name, layer, given in _cases(options, "cuda")
        )


def _line(layer: Layer, operands: tuple[Tensor, ...], options: argparse.Namespace) -> str:
    layers = {"eager": layer, "ours": compiled(layer, "kernelfarm", _STRICT)}
    layers["ours"](*operands)
    if not options.no_inductor:
        layers["inductor"] = compiled(layer, "inductor")
        layers["inductor"](*operands)
    errors = _errors({arm: layers[arm] for arm in ("ours", "eager")}, layer, operands)
    moved = [*operands, *_tuple(layer(*operands))]
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


def _errors(layers: dict[str, Layer], layer: Layer, operands: tuple[Tensor, ...]) -> str:
    """The largest errors of each arm, relative to each result's largest element in float64."""
    exact = _tuple(layer(*(operand.double() for operand in operands)))
    found = []
    for called in layers.values():
        pairs = zip(_tuple(called(*operands)), exact, strict=True)
        found.append(max(((x.double() - y).abs().max() / y.abs().max()).item() for x, y in pairs))
    return " ".join(f"{error:.1e}" for error in found)


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return tuple(found) if isinstance(found, tuple | list) else (found,)


if __name__ == "__main__":
    sys.exit(main())
