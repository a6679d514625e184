"""A layer that multiplies 8-bit floats by 8-bit floats, through a running farm."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("prompt_repetitions")


def scaled_layer(x, weight, by, bias):
    rows = (x.float() / by).clamp(-448, 448).to(torch.float8_e4m3fn)
    y = torch._scaled_mm(
        rows, weight.t(), scale_a=by, scale_b=by, bias=bias, out_dtype=torch.bfloat16
    )
    return functional.gelu(y)


def test_the_framework_multiplies_8_bit_floats_and_the_graph_is_compiled(endpoint):
    torch.manual_seed(0)
    weight, bias = torch.randn(128, 256).to(torch.float8_e4m3fn), torch.randn(128).bfloat16()
    stated = {"strict": True}
    fast = torch.compile(scaled_layer, backend="kernelfarm", options=stated)
    for rows in (1, 32):
        args = (torch.randn(rows, 256).bfloat16(), weight, torch.tensor(0.02), bias)
        with torch.no_grad():
            torch.testing.assert_close(fast(*args), scaled_layer(*args), rtol=0.01, atol=0.01)
