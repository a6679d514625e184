"""A layer that makes integers of its input, through a running farm."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from examples.integer_weights import DynamicInt8Linear
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.targets import LlvmFacts, target_facts

pytestmark = pytest.mark.usefixtures("prompt_repetitions")


@pytest.mark.parametrize("options", [{}, {"freezing": True}], ids=["plain", "frozen"])
def test_a_dynamically_quantized_model_has_the_results_of_eager(endpoint, options):
    """Where the processor multiplies bytes, no step is the framework's product."""
    torch.manual_seed(0)
    first, second = (DynamicInt8Linear(nn.Linear(*sizes)) for sizes in ((128, 192), (192, 70)))
    model = nn.Sequential(first, nn.GELU(), second).eval()
    stated = {"strict": True, **options}
    fast = torch.compile(copy.deepcopy(model), backend="kernelfarm", options=stated)
    with torch.no_grad():
        for rows in (1, 3, 40):
            x = torch.randn(2, rows, 128)
            torch.testing.assert_close(fast(x), model(x))
            with torch.profiler.profile() as profile:
                fast(x)
            called = {event.name for event in profile.events()}
            has_kernels = target_facts(host_cpu_target()).section(LlvmFacts).byte_dots is not None
            assert ("aten::_int_mm" in called) is not has_kernels
