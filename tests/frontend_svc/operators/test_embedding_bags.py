"""Bags of embeddings: results of the forward operator equal eager's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from tests.support.captured_graphs import run_lowered
from tests.support.operator_samples.tensors import normal

INDICES = torch.tensor([0, 4, 4, 2, 1, 3, 0])
OFFSETS = torch.tensor([0, 3, 3, 5])


def check(table: torch.Tensor, *others: torch.Tensor, **rest: Any) -> None:
    def bags(*tensors: torch.Tensor) -> torch.Tensor:
        weights = {"per_sample_weights": tensors[3]} if len(tensors) > 3 else {}
        return torch.ops.aten._embedding_bag_forward_only(*tensors[:3], **weights, **rest)[0]

    tensors = (table, *others)
    captured = captured_bags(bags, *tensors)
    lowered = decompose_to_prims(captured.graph)
    assert "extern" not in [node.op for node in lowered.graph.nodes]
    (result,) = run_lowered(captured, lowered, list(tensors))
    expected = bags(*tensors)
    bound = 1e-12 if table.dtype is torch.float64 else 2e-6
    torch.testing.assert_close(torch.as_tensor(result), expected, rtol=bound, atol=bound)


def captured_bags(bags: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> CapturedGraph:
    module = make_fx(bags, tracing_mode="fake")(*tensors)
    module.graph.eliminate_dead_code()
    return capture(module)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_kernels_take_the_largest_elements_in_any_order_and_sums_in_none(mode: int) -> None:
    def bags(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._embedding_bag_forward_only(*tensors, mode=mode)[0]

    captured = captured_bags(bags, normal(5, 3), INDICES, OFFSETS)
    lowered = decompose_to_prims(captured.graph, needs_fixed_order=True)
    has_extern = "extern" in {node.op for node in lowered.graph.nodes}
    assert has_extern == (mode != 2)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bags_are_combined_as_in_eager(mode: int, dtype: torch.dtype) -> None:
    table = normal(5, 3, dtype=dtype)
    for index_type, padding in itertools.product((torch.int64, torch.int32), (-1, 4)):
        check(table, INDICES.to(index_type), OFFSETS.to(index_type), mode=mode, padding_idx=padding)
    check(table, INDICES, torch.tensor([0, 3, 3, 7]), mode=mode, include_last_offset=True)


def test_rows_are_weighted_before_they_are_summed() -> None:
    check(normal(5, 3), INDICES, OFFSETS, normal(7))
