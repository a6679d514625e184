"""Values that a program rounds to 16 bits, and decides by, are rounded in the code of GPUs."""

from __future__ import annotations

import pytest
import torch

from codegen_svc.backends.registry import find_backend
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.traced_graphs import recording


def _decided(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mixed = x * y + x
    return mixed > y, (mixed * 3).float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_rounded_product_is_not_joined_with_the_addition_behind_it(dtype: torch.dtype) -> None:
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    with torch.no_grad():
        operands = [torch.ones(65, 257, dtype=dtype)] * 2
        torch.compile(_decided, backend=recording(found, runs=False))(*operands)
    target = target_facts("cuda:sm_90a")
    program = optimize(decompose_to_prims(found[0].graph).graph, target).program

    for kernel in program.kernels:
        for variant in find_backend("cuda").build(kernel, target):
            ptx = next(s.content.decode() for s in variant.stages if s.name == "ptx")
            assert "fma.rn" not in ptx
            assert "mul" in ptx
