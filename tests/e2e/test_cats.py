"""Cats of many pieces through a running farm: eager's values, and kernels for every target."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kernelfarm
from examples.real_inputs import RealInput
from kernelfarm.client import torch_backend
from tests.e2e.compiled_inputs import TIMEOUT_S
from tests.support.launches import launches_of_plans, programs_of

PIECES = 24


def compiled(model: object, *, dynamic: bool | None = None) -> object:
    torch.compiler.reset()
    return torch.compile(
        model,
        backend=lambda gm, x: torch_backend.kernelfarm(gm, x, options={"strict": True}),
        dynamic=dynamic,
    )


class DenseBlock(nn.Module):
    """Layers that each read the outputs of all layers before them, as in DenseNet."""

    def __init__(self, layers: int = 12, width: int = 16, growth: int = 8) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(width + k * growth) for k in range(layers))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width + k * growth, growth, 3, padding=1, bias=False) for k in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (batch, width, h, w) -> (batch, width + layers * growth, h, w)."""
        maps = [x]
        for norm, convolve in zip(self.norms, self.convolutions, strict=True):
            maps.append(convolve(torch.relu(norm(torch.cat(maps, 1)))))
        return torch.cat(maps, 1)


def joins(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    changed = [x.softmax(-1) if number % 3 else x * 2 for number, x in enumerate(xs)]
    rows, columns = torch.cat(xs, 0), torch.cat(changed, -1)
    stacked = torch.stack(xs, -1)
    blocks = torch.block_diag(*(x[0] for x in xs))
    return rows.exp(), columns, stacked, blocks, stacked.sum(-1), columns.sum(-1), rows.flip(0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_joins_of_many_tensors_equal_eager(endpoint: str, dynamic: bool) -> None:
    function = compiled(joins, dynamic=dynamic)
    for width in (9, 16):
        torch.manual_seed(width)
        xs = [torch.randn(4, 3, width) for _ in range(PIECES)]
        for ours, theirs in zip(function(*xs), joins(*xs), strict=True):
            assert ours.stride() == theirs.stride()
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_dense_block_equals_eager(endpoint: str, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    block = DenseBlock().eval()
    x = torch.randn(2, 16, 7, 7).contiguous(memory_format=layout)
    with torch.no_grad():
        torch.testing.assert_close(compiled(block)(x), block(x), rtol=1e-4, atol=1e-4)


# slow: in every run it equals eager forward; semantics/test_training.py has gradients.
@pytest.mark.slow
def test_a_dense_block_trains_as_in_eager(endpoint: str) -> None:
    torch.manual_seed(0)
    block = DenseBlock(layers=10)
    x = torch.randn(2, 16, 5, 5)
    gradients = []
    for model in (block, compiled(block)):
        block.zero_grad()
        model(x).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in block.parameters()])
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_cat_into_a_cache_that_is_read_equals_eager(endpoint: str) -> None:
    def shifted(cache: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        total = cache.sum()
        cache.copy_(torch.cat([cache[len(rows) :], *rows], 0))
        return total

    rows = [torch.randn(1, 8) for _ in range(12)]
    caches = [torch.arange(40 * 8.0).reshape(40, 8) for _ in range(2)]
    torch.testing.assert_close(compiled(shifted)(caches[0], *rows), shifted(caches[1], *rows))
    torch.testing.assert_close(caches[0], caches[1])


def test_a_dense_block_launches_one_kernel_for_each_layer(endpoint: str) -> None:
    # Inductor (torch 2.13, CPU) calls 13 kernels too.
    source = RealInput("block", DenseBlock(12).eval(), (torch.randn(2, 16, 7, 7),))
    with torch.no_grad():
        launches = launches_of_plans(programs_of(source, endpoint))
    assert launches.total == 13
    assert sum(launches.contractions.values()) == 12


def test_many_pieces_compile_for_every_kind_of_device(vendor_endpoint: str) -> None:
    def joined(*xs: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.softmax(-1) for x in xs[:4]] + [x * 2 for x in xs[4:]], 1)

    xs = tuple(torch.randn(8, 64).half() for _ in range(PIECES))
    targets = ("cuda:sm_90a", "rocm:gfx942", "ascend:910b", "cpu:x86-64-v3")
    found = kernelfarm.compile(joined, xs, targets=targets, timeout_s=TIMEOUT_S)
    for target in targets:
        program = found.programs[target]
        assert all(program.kernels), target
        assert 1 <= len(program.plan.steps) <= 3, target
