"""Linear layers of integers of four bits through a running farm: a template kernel on Hopper."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from examples.integer_weights import Int4Linear
from kernelfarm.client.compile_model import connect
from kernelfarm.ir.program_ir import Launch
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.traced_graphs import traced_one

N, K = 2048, 4096


@pytest.mark.parametrize("rows", [1, 16])
def test_a_layer_is_one_kernel_whose_threads_exchange_no_factors(
    vendor_farm: Farm, rows: int
) -> None:
    with torch.no_grad():
        layer = Int4Linear(nn.Linear(K, N).bfloat16())
        graph = traced_one(layer, torch.empty(rows, K, dtype=torch.bfloat16)).graph
    client = connect(vendor_farm.endpoint, TIMEOUT_S)
    (program,) = client.compile(graph, ["cuda:sm_90a"])
    client.close()
    assert [type(step) for step in program.plan.steps] == [Launch]
    ((aligned, _),) = program.kernels
    assert not aligned.launch.spills
    # The memory that a multiprocessor's threads share holds the sums of its warps alone.
    assert aligned.launch.shared_bytes <= 16 * 1024
