"""Element types, each compared with eager."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from tests.support.like_eager import assert_like_eager, numbers

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS_8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def few(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([0, 1, 2, 3, 5, 7]).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_every_type_is_summed_converted_compared_and_joined_as_in_eager(dtype):
    def function(x):
        chosen = torch.where(x > 0, x, x)
        return x.sum(), x.to(torch.float32) * 2, x == 1, chosen, torch.cat([x, x]), x.flip(0)

    assert_like_eager(function, lambda: (few(dtype),))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_every_number_computes_as_in_eager(dtype):
    def function(x):
        quotients = x // 2, x % 3, x / 3
        return x + 1, x * x, x - 3, x.cumsum(0), x.abs(), x.clamp(1, 4), x.amax(), *quotients

    assert_like_eager(function, lambda: (few(dtype),))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float_has_eager_s_functions(dtype):
    def function(x):
        rows = x.view(2, 3)
        normal = F.layer_norm(x, (6,)), rows.softmax(-1), rows.var(0)
        return x.exp(), x.mean(), x.sqrt(), x.sigmoid(), *normal

    assert_like_eager(function, lambda: (few(dtype),))


def test_mixed_types_promote_as_in_eager():
    def function(a, b, c, d):
        low = a.to(torch.bfloat16)
        return a + b, b * c, a + d, c / 2, low + b, low * c, (a > b) + c, a * True, b + 1.5

    def make():
        shorts = (few(dtype)[:4] for dtype in (torch.float16, torch.int64, torch.uint8))
        return torch.arange(4.0), *shorts

    assert_like_eager(function, make)


@pytest.mark.parametrize("dtype", FLOATS_8, ids=str)
def test_8_bit_floats_are_stored_as_eager_stores_them(dtype):
    special = torch.tensor(
        [1e6, -1e6, torch.inf, -torch.inf, torch.nan, 448.0, 464.0, 57344.0, 61440.0, 1e-9, -0.0]
    )
    values = torch.cat([special, numbers(500) * 30, numbers(500) * 0.01])
    assert_like_eager(lambda x: x.to(dtype).float(), lambda: (values.clone(),))
    assert_like_eager(lambda x: x.to(dtype).to(torch.bfloat16), lambda: (values.clone(),))
    assert_like_eager(lambda x: x.to(dtype).float(), lambda: (values.half(),))


@pytest.mark.parametrize("dtype", FLOATS_8, ids=str)
def test_8_bit_floats_are_read_scaled_and_viewed_as_in_eager(dtype):
    def function(x, scale):
        wide = x.float() * scale
        turned = x.view(8, 8).t().float()
        return wide, wide.sum(), turned.amax(1), x.to(torch.float16), x.clone().float(), x[::2]

    assert_like_eager(
        function, lambda: ((numbers(64) * 30).to(dtype), torch.tensor(0.5)), rtol=1e-5
    )


@pytest.mark.parametrize("dtype", FLOATS_8, ids=str)
def test_every_8_bit_float_has_eager_s_value(dtype):
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    assert_like_eager(lambda x: (x.float(), x.to(torch.bfloat16)), lambda: (every.clone(),))
