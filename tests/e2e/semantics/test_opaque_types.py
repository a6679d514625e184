"""Opaque element types: extern steps of the framework among our kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.ir.graph_ir import Graph
from tests.support.like_eager import assert_like_eager, assert_same, compiled, numbers

WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
OTHER_FLOATS_8 = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
CLOSE = 1e-5


class FourierMixer(nn.Module):
    """A block that mixes tokens by a transform, as FNet does, then normalizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + torch.fft.fft2(x, dim=(-2, -1)).real)
        return self.out(x + self.feed(x))


def rotated(q: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings by complex numbers, as in the first Llama."""
    pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    turned = pairs * freqs_cis.view(1, q.shape[1], 1, pairs.shape[-1])
    return torch.view_as_real(turned).flatten(3).type_as(q)


def freqs_cis(length: int, width: int) -> torch.Tensor:
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, width, 2).float() / width))
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def complex_numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.complex(numbers(*shape, seed=seed), numbers(*shape, seed=seed + 1))


def gradients(model: nn.Module, call, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = call(x)
    (y * numbers(*y.shape, seed=3)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


# slow: in every run, the same graph with dynamic sizes.
@pytest.mark.parametrize("is_dynamic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_model_that_mixes_by_a_transform_is_compiled_around_it(is_dynamic, sent: list[Graph]):
    torch.manual_seed(1)
    model = FourierMixer(16)
    fast = compiled(model, dynamic=is_dynamic)
    for length in (6, 9):
        x = numbers(2, length, 16, seed=length)
        for ours, theirs in zip(gradients(model, fast, x), gradients(model, model, x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=CLOSE, atol=CLOSE)
    # Inference, forward and backward; each one again for other sizes if sizes are no symbols.
    assert len(sent) == (3 if is_dynamic else 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_complex_rotary_embeddings_are_eager_s(dtype):
    def attend(q, k, cis):
        q, k = rotated(q * 2, cis), rotated(k + 1, cis)
        return F.softmax(torch.einsum("bthd,bshd->bhts", q, k), dim=-1), q

    assert_like_eager(
        attend,
        lambda: (
            numbers(2, 5, 3, 8, dtype=dtype),
            numbers(2, 5, 3, 8, seed=1, dtype=dtype),
            freqs_cis(5, 8),
        ),
        rtol=CLOSE if dtype is torch.float32 else 2e-2,
    )


def test_complex_rotary_embeddings_have_gradients():
    def turn(q):
        return rotated(q * 2, freqs_cis(q.shape[1], q.shape[3])) * 3

    for call in (compiled(turn), compiled(turn, dynamic=True)):
        for length in (5, 7):
            q, p = (numbers(2, length, 3, 8).requires_grad_() for _ in range(2))
            call(q).square().sum().backward()
            turn(p).square().sum().backward()
            torch.testing.assert_close(q.grad, p.grad, rtol=CLOSE, atol=CLOSE)


def test_complex_inputs_are_returned_joined_and_taken_apart_as_in_eager():
    def function(z, w):
        both = torch.cat([z, w * 2])
        return z, both, z.real + 1, w.imag * 2, torch.complex(z.real, w.imag), z.abs(), z.angle()

    assert_like_eager(
        function, lambda: (complex_numbers(3, 4), complex_numbers(3, 4, seed=5)), rtol=CLOSE
    )


def test_conjugates_that_are_returned_beside_their_source_differ_from_it():
    def function(z):
        y = z * 2
        return y, y.conj(), y.imag + 0, y.conj().imag * 1

    fast, z = compiled(function), complex_numbers(4)
    for ours, theirs in zip(fast(z), function(z), strict=True):
        torch.testing.assert_close(ours.resolve_conj(), theirs.resolve_conj())


def test_the_imaginary_part_of_a_conjugate_is_read_with_its_sign():
    def function(x):
        return x * 2 + 1, x.sum()

    fast = compiled(function)
    for x in (complex_numbers(4).conj().imag, numbers(4), complex_numbers(4).imag):
        assert_same(fast(x), function(x), rtol=CLOSE)


def test_a_conjugated_argument_is_taken_as_one():
    def function(z):
        return z * 2, torch.view_as_real(z.resolve_conj()) + 1

    assert_like_eager(function, lambda: (complex_numbers(4).conj(),), rtol=CLOSE)


def test_complex_arguments_are_changed_in_place():
    def function(z, x):
        z.mul_(2)
        z.real.add_(x)
        return z.imag + x

    assert_like_eager(function, lambda: (complex_numbers(4), numbers(4)), rtol=CLOSE)


def test_what_is_written_to_the_parts_of_a_complex_value_is_seen_in_it():
    def function(x):
        z = torch.complex(x, x * 2)
        parts = torch.view_as_real(z)
        parts[..., 0] += 1
        return z * 2, parts.sum(-1)

    assert_like_eager(function, lambda: (numbers(4),), rtol=CLOSE)


def test_parts_of_an_input_stay_views_of_it():
    assert_like_eager(
        lambda z: (torch.view_as_real(z), z.real, z[1:], z + 1), lambda: (complex_numbers(4),)
    )


def test_pairs_that_lie_askew_in_memory_are_made_complex():
    def function(x):
        rows = x.reshape(3, 5)[:, 1:].contiguous()
        return torch.view_as_complex(rows.view(3, 2, 2)) * 2, torch.view_as_complex(
            x[1:].clone().view(7, 2)
        )

    assert_like_eager(function, lambda: (numbers(16)[1:],), rtol=CLOSE)


def test_complex_values_are_expanded_joined_cut_and_unfolded_as_in_eager():
    def function(z):
        y = z * 2
        wide = y.expand(3, 4)
        return wide + 1, wide, wide.abs() * 2, y[0, 1:3].clone(), y.unfold(1, 2, 1) * 1

    assert_like_eager(function, lambda: (complex_numbers(1, 4),), rtol=CLOSE)


def test_complex_constants_of_a_model_travel_with_it():
    table = freqs_cis(5, 8)

    def function(x):
        return torch.view_as_real(torch.view_as_complex(x) * table) + torch.tensor([1.0, 2.0])

    assert_like_eager(function, lambda: (numbers(5, 4, 2),), rtol=CLOSE)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_parameters_are_trained_as_in_eager(dtype):
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(complex_numbers(9).to(dtype))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(torch.fft.irfft(torch.fft.rfft(x * 2) * self.weight, n=16))

    model = Filter()
    x = numbers(3, 16, dtype=model.weight.real.dtype)
    for ours, theirs in zip(
        gradients(model, compiled(model), x), gradients(model, model, x), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("dtype", WIDE_UNSIGNED, ids=str)
def test_wide_unsigned_integers_pass_through(dtype):
    def function(x, y):
        return (y * 2 + 1).to(dtype), x.to(torch.int64) + y, x, x.view(-1)[1:]

    assert_like_eager(
        function, lambda: (torch.arange(6).view(2, 3).to(dtype), torch.arange(6).view(2, 3))
    )


@pytest.mark.parametrize("dtype", OTHER_FLOATS_8, ids=str)
def test_8_bit_floats_of_other_vendors_pass_through(dtype):
    def function(x, y):
        return x.to(torch.float32) * 2, (y.abs() + 1).to(dtype).float() + 1

    assert_like_eager(function, lambda: (numbers(6).abs().to(dtype), numbers(6)))


def test_a_check_of_data_runs_in_its_place():
    def function(labels, x):
        return F.one_hot(labels, 4).to(x.dtype) * x

    fast = compiled(function)
    labels, x = torch.tensor([0, 3, 1]), numbers(3, 4)
    assert_same(fast(labels, x), function(labels, x))
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        fast(torch.tensor([0, 4, 1]), x)


def test_a_check_of_data_that_nothing_else_needs_is_not_dropped():
    def function(x):
        torch._assert_async((x > 0).all(), "x must be positive")
        return x * 2

    fast = compiled(function)
    assert_same(fast(torch.ones(3)), function(torch.ones(3)))
    with pytest.raises(RuntimeError, match="x must be positive"):
        fast(-torch.ones(3))
