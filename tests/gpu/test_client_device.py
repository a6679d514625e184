"""Models on an NVIDIA GPU of this machine; without one these tests are reported as skipped."""

from __future__ import annotations

import pytest
import torch

from examples.real_inputs import ReferenceModel, h
from tests.support.accuracy import assert_as_good_as_eager

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("fresh_backend", "vendor_endpoint"),
]


def compiled(function):
    return torch.compile(function, backend="kernelfarm", options={"strict": True})


def test_the_reference_model_runs_in_half_precision():
    model = ReferenceModel().eval().half().cuda()
    x = torch.randn(32, 128, dtype=torch.half, device="cuda")
    with torch.no_grad():
        assert_as_good_as_eager(compiled(model)(x), model, x)


def test_h_runs_on_the_current_stream():
    a, b = (torch.randn(64, 128, device="cuda") for _ in range(2))
    fast = compiled(h)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = fast(a, b)
    torch.cuda.current_stream().wait_stream(stream)
    assert_as_good_as_eager(result, h, a, b)


def test_unaligned_inputs_take_the_general_variant():
    x = torch.randn(1025, device="cuda")[1:]
    assert_as_good_as_eager(
        compiled(lambda x: (x * 3).sin() + 1)(x), lambda x: (x * 3).sin() + 1, x
    )


def test_a_call_can_be_captured_into_a_cuda_graph():
    a, b = (torch.randn(64, 128, device="cuda") for _ in range(2))
    fast = compiled(h)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            fast(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = fast(a, b)
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(result, h(a, b))
