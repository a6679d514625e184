"""Layers that compute their weights from integers or 8-bit floats, and what they store.

Shapes: x: (m, k); scales and zero points: one for the weight, for a row, for `GROUP` terms of a
row, or for `GROUP` terms of `GROUP` rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from examples.integer_weights import block_scaled_linear, dynamic_int8_linear

GROUP = 128


@dataclass(frozen=True)
class Form:
    """How a layer computes its weight, and a maker of what is stored for n results and k terms."""

    layer: Callable[..., Tensor]
    store: Callable[[int, int, str], tuple[Tensor, ...]]


def bytes_after(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Scales of rows, after the product."""
    return functional.linear(x, weight.to(x.dtype)) * scale


def int8_transposed(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """As `bytes_after`; the weight is transposed before it is converted."""
    return x @ weight.t().to(x.dtype) * scale


def bytes_before(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Scales of rows, before the product."""
    return functional.linear(x, weight.to(x.dtype) * scale[:, None])


def _centred(packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    n, groups = scale.shape
    integers = packed.reshape(n, groups, -1).to(scale.dtype)
    return ((integers - zero[:, :, None]) * scale[:, :, None]).reshape(n, -1)


def int4_neighbours(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """A byte has two neighbours of a row."""
    pairs = torch.stack((packed & 15, packed >> 4), -1)
    return functional.linear(x, _centred(pairs, scale, zero))


def int4_halves(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """A byte has an element of each half of a row."""
    halves = torch.cat((packed & 15, packed >> 4), -1)
    return functional.linear(x, _centred(halves, scale, zero))


def int4_words(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, shifts: Tensor) -> Tensor:
    """A word of 32 bits has eight neighbours of a column."""
    words, n = packed.shape
    integers = (packed[:, None, :] >> shifts[None, :, None]) & 15
    integers = integers.reshape(len(scale), -1, n).to(scale.dtype)
    weight = (integers - zero[:, None, :]) * scale[:, None, :]
    return x @ weight.reshape(8 * words, n)


def float8_tensor(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """One scale, before the product."""
    return functional.linear(x, weight.to(x.dtype) * scale)


def float8_groups(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Scales of groups of a row."""
    groups = weight.to(x.dtype).unflatten(1, (-1, GROUP)) * scale[:, :, None]
    return functional.linear(x, groups.flatten(1))


def float8_rounded(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Scales of rows; the weight is computed in f32 and rounded, as torchao does."""
    return functional.linear(x, (weight.float() * scale[:, None]).to(x.dtype))


def _store_int8(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    weight = torch.randint(-128, 128, (n, k), dtype=torch.int8, device=device)
    return weight, (torch.rand(n, device=device) * 0.02 * k**-0.5).bfloat16()


def _store_dynamic(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    weight, _ = _store_int8(n, k, device)
    return weight, torch.rand(n, device=device) * 0.02 * k**-0.5, torch.randn(n, device=device)


def _scales(shape: tuple[int, int], k: int, device: str) -> tuple[Tensor, Tensor]:
    scale = (torch.rand(shape, device=device) * 0.3 * k**-0.5).bfloat16()
    return scale, torch.randint(6, 10, shape, device=device).bfloat16()


def _store_int4(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
    return packed, *_scales((n, k // GROUP), k, device)


def _store_words(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    limits = torch.iinfo(torch.int32)
    shape = (k // 8, n)
    packed = torch.randint(limits.min, limits.max, shape, dtype=torch.int32, device=device)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=device)
    return packed, *_scales((k // GROUP, n), k, device), shifts


def _float8(n: int, k: int, device: str, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Random numbers of 8 bits, some of them zeros and subnormal ones."""
    return torch.randn(n, k, device=device).mul(torch.rand(n, k, device=device) ** 8).to(dtype)


def _random_scale(k: int, device: str, *shape: int) -> Tensor:
    return torch.rand(shape, device=device) * 4 * k**-0.5


def _store_rows(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    return _float8(n, k, device), _random_scale(k, device, n).bfloat16()


def _store_e5m2(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    weight = _float8(n, k, device, torch.float8_e5m2)
    return weight, _random_scale(k, device, n).bfloat16()


def _store_tensor(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    return _float8(n, k, device), _random_scale(k, device).bfloat16()


def _store_groups(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    return _float8(n, k, device), _random_scale(k, device, n, k // GROUP).bfloat16()


def _store_rounded(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    return _float8(n, k, device), _random_scale(k, device, n)


def _store_blocks(n: int, k: int, device: str) -> tuple[Tensor, ...]:
    return _float8(n, k, device), _random_scale(k, device, -(-n // GROUP), -(-k // GROUP))


INTEGER_FORMS = {
    "int8-after": Form(bytes_after, _store_int8),
    "int8-transposed": Form(int8_transposed, _store_int8),
    "int8-before": Form(bytes_before, _store_int8),
    "int4-neighbours": Form(int4_neighbours, _store_int4),
    "int4-halves": Form(int4_halves, _store_int4),
    "int4-words": Form(int4_words, _store_words),
}

FLOAT8_FORMS = {
    "float8-after": Form(bytes_after, _store_rows),
    "float8-before": Form(bytes_before, _store_rows),
    "float8-e5m2": Form(bytes_before, _store_e5m2),
    "float8-tensor": Form(float8_tensor, _store_tensor),
    "float8-groups": Form(float8_groups, _store_groups),
    "float8-rounded": Form(float8_rounded, _store_rounded),
    "float8-blocks": Form(block_scaled_linear, _store_blocks),
}

FORMS = {**INTEGER_FORMS, **FLOAT8_FORMS}

DYNAMIC_FORMS = {"int8-dynamic": Form(dynamic_int8_linear, _store_dynamic)}
"""Layers that also make integers of x; their products are integers' (`aten._int_mm`)."""


def operands(form: Form, rows: int, n: int, k: int, device: str = "cpu") -> tuple[Tensor, ...]:
    """Arguments of a form's layer: x of bf16, and random numbers, scales and zero points."""
    return torch.randn(rows, k, device=device).bfloat16(), *form.store(n, k, device)
