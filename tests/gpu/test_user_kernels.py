"""Triton kernels of users on a GPU of this machine; without one, that their programs compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernelfarm.client.compile_model import connect
from kernelfarm.ir.program_ir import ExternCall
from tests.gpu.user_kernels import UserKernelCase, all_user_kernels, graphs_of, problem_of
from tests.support.farm import Farm

HAS_GPU = torch.cuda.is_available()
TIMEOUT_S = 300.0
CASES = list(all_user_kernels())


@pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_with_kernels_computes_what_it_should(
    case: UserKernelCase, vendor_farm: Farm
) -> None:
    options = {"mode": "strict", "endpoint": vendor_farm.endpoint, "timeout_s": TIMEOUT_S}

    assert problem_of(case, torch.device("cuda:0"), options) == ""


def quick_cases() -> Iterator[Any]:
    for case in (*CASES[:8], *CASES[-4:]):
        # Each of its configurations is compiled.
        marks = [pytest.mark.slow] if case.name == "autotuned matmul" else []
        yield pytest.param(case, id=case.name, marks=marks)


@pytest.mark.sweep
@pytest.mark.parametrize("case", list(quick_cases()))
def test_a_model_with_kernels_compiles_without_a_gpu(
    case: UserKernelCase, vendor_farm: Farm
) -> None:
    (graph,) = graphs_of(case)
    with connect(vendor_farm.endpoint) as client:
        (program,) = client.compile(graph, ["cuda:sm_90a"])

    names = program.plan.kernel_names
    steps = [step for step in program.plan.steps if isinstance(step, ExternCall)]
    assert all(step.choices for step in steps)
    kernels = [choice.kernel for step in steps for choice in step.choices]
    assert kernels
    assert [program.kernels[n][-1].launch.symbol for n in kernels] == [names[n] for n in kernels]
