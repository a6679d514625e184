"""A layer that makes integers of its input, through a running farm."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from examples.integer_weights import DynamicInt8Linear

pytestmark = pytest.mark.usefixtures("prompt_repetitions")


@pytest.mark.parametrize("options", [{}, {"freezing": True}], ids=["plain", "frozen"])
def test_a_dynamically_quantized_model_has_the_results_of_eager(endpoint, options):
    torch.manual_seed(0)
    layers = [
        DynamicInt8Linear(nn.Linear(128, 192)),
        nn.GELU(),
        DynamicInt8Linear(nn.Linear(192, 70)),
    ]
    model = nn.Sequential(*layers).eval()
    fast = torch.compile(
        copy.deepcopy(model), backend="kernelfarm", options={"strict": True, **options}
    )
    with torch.no_grad():
        for rows in (1, 3, 40):
            x = torch.randn(2, rows, 128)
            torch.testing.assert_close(fast(x), model(x))
