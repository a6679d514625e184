"""Batched products by kernels, compared with the framework's library on the CPU.

For each shape: both matrices row-major (`nn`), the left one (`tn`), the right one (`nt`) or both
(`tt`) transposed. Arms take turns in one process. To price `cpu:x86-64-v3` on a machine with
AVX-512, the library must be held to AVX2: MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2.

Usage: python -m benchmarks.batched_products [--target T] [--threads N] [--type f32|bf16]
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.tiled_products import measured
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.targets import BatchedProductFacts, target_facts

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SHAPES = (
    (12, 128, 64, 128),
    (12, 128, 128, 64),
    (192, 49, 32, 49),
    (192, 49, 49, 32),
    (8, 512, 64, 512),
    (8, 512, 512, 64),
    (16, 16, 64, 512),
    (8, 256, 256, 256),
    (4, 1024, 1024, 1024),
)
"""Batches, rows, terms and columns: layers of attention first."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default=host_cpu_target())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--type", choices=TYPES, default="f32")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    own = BatchedProductFacts((options.type,), 1)
    facts = replace(target_facts(options.target), batched_products=own)
    print("batches, rows, terms, columns: library / kernel for nn, nt, tn, tt; largest error ratio")
    for batches, rows, terms, columns in SHAPES:
        found = []
        for is_left_turned in (False, True):
            for is_right_turned in (False, True):
                factors = [
                    _matrices((batches, rows, terms), is_turned=is_left_turned),
                    _matrices((batches, terms, columns), is_turned=is_right_turned),
                ]
                narrow = [factor.to(TYPES[options.type]) for factor in factors]
                found.append(measured(torch.bmm, narrow, facts))
        ratios = "  ".join(f"{each.library_ms / each.kernel_ms:5.2f}" for each in found)
        errors = max(each.kernel_error / each.library_error for each in found)
        print(f"{batches:>4}{rows:>6}{terms:>6}{columns:>6}  {ratios}  {errors:5.2f}", flush=True)


def _matrices(shape: tuple[int, int, int], *, is_turned: bool) -> Tensor:
    if not is_turned:
        return torch.randn(shape)
    return torch.randn(shape[0], shape[2], shape[1]).transpose(1, 2)


if __name__ == "__main__":
    main()
