"""Convolutions with a window of one pixel: kernels beside the framework's library on a CPU.

Each has a bias and hard-swish behind it. Arms: the library with a plain weight (`eager`), the
library with a packed weight, which also computes the activation (`packed`), and a kernel, from a
plain weight. A farm on this machine compiles. To price `cpu:x86-64-v3-amd` on a machine with
AVX-512: KERNELFARM_HOST_TARGET=cpu:x86-64-v3-amd ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2.

Usage: python -m benchmarks.pixel_convolutions [--threads N] [--layouts first last]
           [--type f32|bf16]
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.timing import Call, median_ms
from examples.farm import running_farm
from kernelfarm.client.pytorch.private.operators import packed_operators

ROUNDS, CALLS = 11, 5
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}


@dataclass(frozen=True)
class Case:
    """Images (batch, channels, side, side) to (batch, results, side, side)."""

    batch: int
    side: int
    channels: int
    results: int

    @property
    def operations(self) -> int:
        """Multiplications and additions of products."""
        return 2 * self.batch * self.side**2 * self.channels * self.results


CASES = (
    # MobileNetV3-Large, its gates last.
    Case(1, 112, 16, 64),
    Case(1, 56, 64, 24),
    Case(1, 56, 24, 72),
    Case(1, 28, 120, 40),
    Case(1, 28, 40, 240),
    Case(1, 14, 80, 480),
    Case(1, 14, 672, 112),
    Case(1, 7, 160, 960),
    Case(1, 7, 960, 160),
    Case(1, 1, 960, 240),
    Case(8, 1, 960, 240),
    # ResNet-50.
    Case(1, 56, 64, 256),
    Case(1, 56, 256, 64),
    Case(1, 28, 128, 512),
    Case(1, 14, 1024, 256),
    Case(1, 7, 512, 2048),
    Case(8, 14, 1024, 256),
)


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    print("channels of the images, case: milliseconds of eager, packed, ours; eager / ours,")
    print("packed / ours; GFLOP/s of ours; errors of ours and eager")
    with running_farm(vendors="cpu") as farm:
        os.environ["KERNELFARM_ENDPOINT"] = farm.endpoint
        for layout in options.layouts:
            for case in CASES:
                line = _line(case, LAYOUTS[layout], TYPES[options.type])
                print(f"{layout:<6}{line}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layouts", nargs="*", choices=tuple(LAYOUTS), default=[*LAYOUTS])
    parser.add_argument("--type", choices=TYPES, default="f32")
    return parser.parse_args()


def _layer(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.hardswish(functional.conv2d(images, weight, bias))


def _line(case: Case, layout: torch.memory_format, dtype: torch.dtype) -> str:
    images = torch.randn(case.batch, case.channels, case.side, case.side)
    weight = torch.randn(case.results, case.channels, 1, 1) / case.channels**0.5
    args = tuple(
        tensor.to(dtype)
        for tensor in (images.to(memory_format=layout), weight, torch.randn(case.results))
    )
    torch._dynamo.reset()
    ours = torch.compile(_layer, backend="kernelfarm", options={"mode": "strict"}, dynamic=False)
    arms: dict[str, Call] = {"eager": lambda: _layer(*args), "ours": lambda: ours(*args)}
    packed = _packed(*args)
    if packed is not None:
        arms["packed"] = packed
    exact = _layer(*(tensor.double() for tensor in args))
    errors = [(arms[arm]() - exact).abs().max().item() for arm in ("ours", "eager")]  # type: ignore[operator]  # tensors
    ms = median_ms(arms, "cpu", rounds=ROUNDS, calls=CALLS)
    library = ms.get("packed", float("nan"))
    return (
        f"{case!s:<60}{ms['eager']:8.3f}{library:8.3f}{ms['ours']:8.3f}"
        f"{ms['eager'] / ms['ours']:7.2f}{library / ms['ours']:7.2f}"
        f"{case.operations / ms['ours'] / 1e6:6.0f}  {errors[0]:.1e} {errors[1]:.1e}"
    )


def _packed(images: Tensor, weight: Tensor, bias: Tensor) -> Call | None:
    """The library's call with a packed weight; None if PyTorch lacks oneDNN."""
    operators = packed_operators()
    if operators is None:
        return None
    window = [0, 0], [1, 1], [1, 1], 1
    turned = operators.pack_convolution(weight, *window, list(images.shape))
    return lambda: operators.convolution(images, turned, bias, *window, "hardswish", [], "")


if __name__ == "__main__":
    main()
