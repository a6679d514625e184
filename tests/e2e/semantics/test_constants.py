"""Tensors of a model in requests: small constants are sent by content, weights never."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from kernelfarm.ir.graph_ir import Constant
from kernelfarm.wire import graph_to_proto
from tests.support.like_eager import assert_same, compiled, numbers


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()


def test_weights_and_inputs_never_leave_the_process(sent):
    layers = nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)
    model = nn.Sequential(*layers)
    model.register_buffer("offset", numbers(4, seed=3))
    x = numbers(3, 16)
    with torch.no_grad():
        compiled(lambda x: model(x) + model.offset)(x)
    request = graph_to_proto(sent[0]).SerializeToString()
    held = (*model.parameters(), *model.buffers(), x)
    assert len(held) == 8
    for tensor in held:
        assert _bytes_of(tensor)[:32] not in request
    assert not [source for source in sent[0].inputs if isinstance(source.kind, Constant)]


def test_small_constants_travel_by_content_and_large_ones_are_inputs(sent):
    def function(x):
        small = torch.tensor([1.0, 2.0, 4.0, 8.0])
        return x * small + 1

    assert_same(compiled(function)(numbers(3, 4)), function(numbers(3, 4)))
    constants = [i.kind for i in sent[0].inputs if isinstance(i.kind, Constant)]
    for constant in constants:
        assert len(constant.data) <= 64 * 1024
        assert constant.sha256 == hashlib.sha256(constant.data).digest()
    assert b"".join(c.data for c in constants) == _bytes_of(torch.tensor([1.0, 2.0, 4.0, 8.0]))


def test_a_large_tensor_that_a_function_closes_over_stays_here(sent):
    large = numbers(200, 200)

    def function(x):
        return x + large.sum(0)

    assert_same(compiled(function)(numbers(3, 200)), function(numbers(3, 200)), rtol=1e-5)
    request = graph_to_proto(sent[0]).SerializeToString()
    assert _bytes_of(large)[:32] not in request
    assert len(request) < 2000


def test_a_new_value_of_a_captured_tensor_is_read_at_the_next_call(sent):
    scale = torch.ones(4)
    fast = compiled(lambda x: x * scale)
    assert_same(fast(numbers(3, 4)), numbers(3, 4))
    scale.fill_(3)
    assert_same(fast(numbers(3, 4)), numbers(3, 4) * 3)
    assert len(sent) == 1
