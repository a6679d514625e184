"""Whole models: their number of launches, and equality with PyTorch eager."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from examples.real_inputs import WHOLE_GRAPHS
from tests.optimizer_svc.eager_oracle import Traced, launches, traced

# (launches, distinct kernels). Inductor has 15 launches on the CPU for llama and 9 for bert.
LAUNCHES = {"reference": (3, 1), "h": (2, 2), "llama": (11, 8), "bert": (8, 4)}


@pytest.mark.parametrize("name", sorted(WHOLE_GRAPHS))
def test_a_model_equals_eager_in_few_launches(name: str) -> None:
    model = WHOLE_GRAPHS[name]()
    found = traced(model.model, *model.args)
    (optimized,) = found.optimized
    assert (launches(optimized), len(optimized.program.kernels)) == LAUNCHES[name]
    _check_results(found)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:]).softmax(-1) * x.sigmoid()


def _pieces(x: torch.Tensor) -> torch.Tensor:
    both = torch.cat([x[:, 1:], -x[:, :-1]], dim=1)
    return torch.nn.functional.pad(both, (1, 2), value=1.5).flip(0)


def _variance(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = torch.var_mean(x, dim=0)
    return (x - mean) / (variance + 1e-5).sqrt(), variance


@pytest.mark.parametrize("function", [_rows, _pieces, _variance])
def test_dynamic_shapes_equal_eager(function: Callable[..., object]) -> None:
    torch.manual_seed(0)
    found = traced(function, torch.randn(7, 33), dynamic=True)
    assert any(graph.graph.symbols for graph in found.captured)
    _check_results(found)


def _check_results(found: Traced) -> None:
    assert found.results
    for eager, ours in found.results:
        for reference, got in zip(eager, ours, strict=True):
            if not torch.is_tensor(reference):
                assert got == reference
                continue
            assert got.shape == tuple(reference.shape)
            # Sums in f32 have another order, through a few layers.
            np.testing.assert_allclose(got, reference.numpy(), rtol=1e-4, atol=5e-6)
