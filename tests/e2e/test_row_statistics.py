"""Row statistics in one pass through a running farm: eager's values for rows of any length."""

from __future__ import annotations

import torch
from torch.nn.functional import layer_norm

from kernelfarm.client import torch_backend


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Moments of rows and columns, which CPUs take in one pass where their length varies."""
    return layer_norm(x, x.shape[1:]), x.var(1), x.var(0), x.softmax(1), x.logsumexp(1)


def compiled(*, is_dynamic: bool) -> object:
    return torch.compile(
        statistics,
        backend=lambda gm, x: torch_backend.kernelfarm(gm, x, options={"strict": True}),
        dynamic=is_dynamic,
    )


def assert_like_eager(run: object, x: torch.Tensor) -> None:
    assert callable(run)
    for ours, exact in zip(run(x), statistics(x.double()), strict=True):
        # A mean of 10 is rounded by up to 5e-7, which LayerNorm of two elements may divide by 0.01.
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_rows_of_varying_length_equal_float64(endpoint: str) -> None:
    torch.manual_seed(0)
    run = compiled(is_dynamic=True)
    for shape in ((5, 33), (33, 2), (3, 20000), (70, 100)):
        assert_like_eager(run, torch.randn(shape) + 10)


def test_infinite_rows_equal_float64(endpoint: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(6, 9000)
    x[0] = -torch.inf
    x[1, 5] = torch.inf
    x[2, :4000] = -torch.inf
    x[3, 7] = torch.nan
    assert_like_eager(compiled(is_dynamic=True), x)


def test_long_rows_equal_float64(endpoint: str) -> None:
    torch.manual_seed(2)
    assert_like_eager(compiled(is_dynamic=False), torch.randn(2, 300_000) + 100)
