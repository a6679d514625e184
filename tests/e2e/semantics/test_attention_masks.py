"""Masks of attention: kernels of the farm compute the bias that the framework adds to scores."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from tests.support.like_eager import assert_same, compiled, numbers

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def heads(dtype: torch.dtype) -> list[torch.Tensor]:
    return [numbers(2, 4, 6, 8, seed=seed).to(dtype) for seed in range(3)]


def two_layers(q, k, v, kept):
    mask = kept[:, None, None, :] & torch.ones(6, 6, dtype=torch.bool).tril()
    once = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    twice = F.scaled_dot_product_attention(once, k, v, attn_mask=mask, scale=0.5)
    return twice.transpose(1, 2).contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_of_booleans_gives_what_eager_gives(dtype):
    kept = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    args = (*heads(dtype), kept)
    with torch.no_grad():
        assert_same(compiled(two_layers)(*args), two_layers(*args))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_sees_nothing_is_what_eager_makes_of_it(dtype):
    kept = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6], dtype=torch.bool)
    args = (*heads(dtype), kept)
    with torch.no_grad():
        assert_same(compiled(two_layers)(*args), two_layers(*args))


def test_layers_share_one_mask_of_numbers(sent):
    kept = torch.ones(2, 6, dtype=torch.bool)
    with torch.no_grad():
        compiled(two_layers)(*heads(torch.float16), kept)
    lowered = decompose_to_prims(sent[0]).graph
    types = lowered.types()
    given = [types[node.args[3].value].dtype for node in lowered.nodes if node.op == "extern"]
    assert given == [DType.F16, DType.F16]
