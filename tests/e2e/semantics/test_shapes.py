"""Sizes, strides and addresses of inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

import kernelfarm
from kernelfarm.client.compile_model import connect
from kernelfarm.errors import CallerError
from kernelfarm.ir.artifact import GuardOp, GuardSubject
from kernelfarm.ir.graph_ir import SizeSymbol
from tests.support.like_eager import assert_like_eager, assert_same, compiled, numbers


def test_the_second_size_makes_a_dimension_dynamic_and_serves_all_later_ones(sent):
    def function(x):
        return F.softmax(x * 2, -1).sum(0)

    fast = compiled(function)
    for rows in (4, 7, 9, 33, 1000):
        assert_same(fast(numbers(rows, 6)), function(numbers(rows, 6)))
    static, dynamic = sent
    assert not static.symbols
    assert [symbol.lower for symbol in dynamic.symbols] == [2]


def test_sizes_0_and_1_are_programs_of_their_own(sent):
    fast = compiled(lambda x: (x * 2).sum(0), dynamic=True)
    for rows in (5, 1, 0, 3):
        assert_same(fast(numbers(rows, 6)), (numbers(rows, 6) * 2).sum(0))
    assert len(sent) == 3


def test_one_compile_serves_all_sizes_of_a_dynamic_function(sent):
    def function(x, y):
        return F.layer_norm(x @ y, (y.shape[1],))

    fast = compiled(function, dynamic=True)
    for m, k, n in ((4, 5, 6), (7, 3, 2), (30, 20, 10)):
        x, y = numbers(m, k), numbers(k, n, seed=1)
        torch.testing.assert_close(fast(x, y), function(x, y))
    assert len(sent) == 1


def test_stated_ranges_travel_with_their_symbols(sent):
    x = numbers(8, 5)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    fast = compiled(lambda x: torch.cat([x, x + 1]).mean(1))
    for rows in (8, 3, 64):
        y = x if rows == 8 else numbers(rows, 5)
        assert_same(fast(y), torch.cat([y, y + 1]).mean(1))
    (graph,) = sent
    (symbol,) = graph.symbols
    assert symbol == SizeSymbol(symbol.name, 2, 64, hint=8)


def test_numbers_among_the_arguments_travel_as_symbols(sent):
    fast = compiled(lambda x, n: x[:n] * n, dynamic=True)
    for n in (3, 5, 7):
        assert_same(fast(numbers(10, 2), n), numbers(10, 2)[:n] * n)
    assert len(sent) == 1


def test_views_whose_sizes_are_products_and_quotients_of_symbols_are_right():
    def function(x):
        rows = x.shape[0]
        flat = x.reshape(rows * x.shape[1], -1)
        return flat.sum(0), x.flatten().view(-1, 2) + rows, x.unfold(0, 2, 1).sum(-1)

    fast = compiled(function, dynamic=True)
    for m, n in ((4, 6), (8, 3), (5, 10)):
        assert_same(fast(numbers(m, n, 4)), function(numbers(m, n, 4)))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_tensors_without_elements_are_like_eager(shape):
    def function(x):
        return x * 2 + 1, x.sum(), x.sum(0), x.reshape(-1).cumsum(0), torch.cat([x, x])

    assert_like_eager(function, lambda: (numbers(*shape),))


def test_tensors_without_axes_are_like_eager():
    def function(x, y):
        return x + y, (x > y).float(), x.exp().sum(), torch.stack([x, y]), x.expand(3)

    assert_like_eager(function, lambda: (torch.tensor(1.5), torch.tensor(2.0)))


def test_axes_of_one_element_are_like_eager():
    def function(x):
        return x.softmax(-1), x.mean(0), x.squeeze(), x.expand(3, 1), x + 1, x.t()

    assert_like_eager(function, lambda: (numbers(1, 1),))


def test_operands_broadcast_as_in_eager():
    assert_like_eager(
        lambda a, b, c: (a + b * c).sum(1),
        lambda: (numbers(3, 1, 5), numbers(1, 4, 1), torch.tensor(2.0)),
    )


def _every_second() -> torch.Tensor:
    return numbers(8, 9)[1::2, ::3]


def _overlapping() -> torch.Tensor:
    return torch.arange(10.0).as_strided((4, 4), (2, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(8, 9).t(),
        lambda: numbers(4, 5, 6).permute(2, 0, 1),
        _every_second,
        lambda: numbers(1, 4).expand(3, 4),
        lambda: numbers(4).expand(3, 4),
        lambda: torch.tensor(2.0).expand(3, 4),
        _overlapping,
        lambda: numbers(100)[7:55],
        lambda: numbers(10, 10)[1:, 3:],
    ],
    ids=[
        "transposed",
        "permuted",
        "with gaps",
        "expanded",
        "expanded by an axis",
        "one element expanded",
        "overlapping",
        "with an offset",
        "a block",
    ],
)
def test_inputs_in_any_layout_give_eager_s_values_and_strides(
    make: Callable[[], torch.Tensor],
):
    def function(x):
        return x + 1, x * x, x.sum(0), x.cumsum(0), x.softmax(-1), x.flip(0), x.amax()

    assert_like_eager(function, lambda: (make(),))


def test_another_layout_of_the_same_shape_is_like_eager():
    fast = compiled(lambda x: x * 2 + 1)
    inputs = (numbers(4, 6), numbers(6, 4).t(), numbers(4, 12)[:, ::2], numbers(1, 6).expand(4, 6))
    for x in inputs:
        assert_same(fast(x), x * 2 + 1)


def _images(*shape: int) -> torch.Tensor:
    return numbers(*shape).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("is_last", [(True, False), (True, True), (False, True)])
def test_channels_last_comes_out_where_eager_gives_it(is_last):
    def function(x, weight):
        y = F.conv2d(x, weight, padding=1)
        pooled = F.max_pool2d(y, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(y, 1)
        return F.relu(y), y.mean((2, 3)), *pooled, x * 2, x.contiguous() + 1

    def make():
        shapes = ((2, 4, 8, 8), (6, 4, 3, 3))
        return [
            _images(*shape) if last else numbers(*shape)
            for shape, last in zip(shapes, is_last, strict=True)
        ]

    assert_like_eager(function, make, rtol=1e-4)


def test_a_channels_last_network_with_dynamic_sizes_is_like_eager(sent):
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    model = nn.Sequential(*layers).eval().to(memory_format=torch.channels_last)
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        for count, side in ((2, 16), (3, 20), (4, 17)):
            x = _images(count, 3, side, side)
            assert_same(fast(x), model(x), rtol=1e-4)
    assert len(sent) == 1


@pytest.mark.parametrize(("dtype", "shift"), [(np.float32, 1), (np.float32, 4), (np.float64, 4)])
def test_data_at_any_address_is_read_rightly(dtype, shift):
    def unaligned() -> torch.Tensor:
        size = 64 * np.dtype(dtype).itemsize
        memory = np.frombuffer(bytearray(size + 8), dtype=np.uint8)
        tensor = torch.from_numpy(memory[shift : shift + size].view(dtype))
        tensor.copy_(torch.arange(64.0))
        assert tensor.data_ptr() % 16
        return tensor

    def function(x):
        return x * 2 + 1, x.view(8, 8).softmax(-1), x.sum()

    assert_like_eager(function, lambda: (unaligned(),))
    aligned, fast = unaligned().clone(), compiled(function)
    fast(aligned)
    assert_same(fast(unaligned()), function(aligned))


def test_assumptions_on_sizes_and_addresses_are_guards_of_variants(vendor_farm, sent):
    """Kernels with 32-bit indices are variants for buffers that such indices can address."""
    x = numbers(6, 5)
    torch._dynamo.mark_dynamic(x, 0)
    compiled(lambda x: (x * 2).exp())(x)
    with connect(vendor_farm.endpoint) as client:
        (program,) = client.compile(sent[0], ["cuda:sm_90a"])
    (variants,) = program.kernels
    assert len(variants) > 1
    assert not variants[-1].guard, "the general variant may always be launched"
    bounded = [a for v in variants[:-1] for a in v.guard if a.op is GuardOp.LT]
    assert bounded
    assert all(
        2**30 < atom.operand <= 2**31 or atom.subject is GuardSubject.SYMBOL for atom in bounded
    )


def test_sizes_outside_of_the_captured_range_are_refused_with_both_named(farm):
    rows = torch.export.Dim("rows", min=2, max=64)
    model = nn.Sequential(nn.GELU())
    program = kernelfarm.compile(model, (numbers(8, 5),), dynamic_shapes=({0: rows},))
    assert_same(program(numbers(64, 5)), model(numbers(64, 5)), rtol=1e-6)
    with pytest.raises(CallerError, match=r"is 65; compiled for 2 to 64"):
        program(numbers(65, 5))


def test_one_compile_of_a_dynamic_llama_serves_ten_sizes(sent):
    model = _llama()
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        for length in (8, 3, 5, 16, 17, 31, 32, 64, 100, 12):
            ids = torch.arange(2 * length).reshape(2, length) % 100
            result = fast(ids, use_cache=False).logits
            expected = model(ids, use_cache=False).logits
            assert_same(result, expected, rtol=1e-4)
    (graph,) = sent
    assert [symbol.lower for symbol in graph.symbols] == [2] * len(graph.symbols)


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 # takes seconds

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config).eval()


def test_memory_around_a_view_of_an_input_is_read_as_in_eager():
    def function(x):
        inner = x[2:8]
        return inner.as_strided((3,), (1,), 0) + 1, inner.as_strided((2, 3), (2, 1)) * 2

    assert_like_eager(function, lambda: (torch.arange(10.0),))


@pytest.mark.parametrize("dynamic", [False, True])
def test_chunks_that_overlap_are_read_as_in_eager(dynamic):
    """Chunks of 4 rows that begin every 2 rows, as in attention over long documents."""

    def function(x):
        rows, width = x.shape
        y = x * 2
        chunks = y.as_strided((rows // 2 - 1, 4, width), (2 * width, width, 1))
        return chunks.softmax(1).sum(-1)

    for rows in (8, 12):
        x = torch.arange(3.0 * rows).reshape(rows, 3)
        torch.testing.assert_close(compiled(function, dynamic=dynamic)(x), function(x))
