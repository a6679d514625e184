"""Scans, sorts and scatters through a running farm: eager's values, gradients, and errors."""

from __future__ import annotations

import copy

import pytest
import torch

from kernelfarm.client import torch_backend


def compiled(model: object, *, dynamic: bool | None = None) -> object:
    return torch.compile(
        model,
        backend=lambda gm, x: torch_backend.kernelfarm(gm, x, options={"strict": True}),
        dynamic=dynamic,
    )


def running_forms(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    positions = mask.long().cumsum(1) * mask.long() + 1
    likely = torch.softmax(x, -1).cumsum(-1).log()
    best, where = x.cummax(1)
    return positions, likely, best, where, torch.logcumsumexp(x, 1), x.sign().cumprod(0)


def test_running_forms_equal_eager(endpoint: str) -> None:
    x, mask = torch.randn(33, 70), torch.rand(33, 70) > 0.3
    got, reference = compiled(running_forms)(x, mask), running_forms(x, mask)
    for ours, theirs in zip(got, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def ordered_forms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    # A router of experts, the running sums of nucleus sampling put back in place, ranks of rows.
    weights, experts = torch.softmax(x, -1).topk(2)
    # Stable: long rows of random floats hold equal ones, and eager's choice would show.
    logits, tokens = x.sort(dim=1, descending=True, stable=True)
    likely = torch.zeros_like(x).scatter(1, tokens, torch.softmax(logits, -1).cumsum(-1))
    middle, where = x.median(1)
    return weights, experts, likely, middle, where, x.quantile(0.3, 0), x.kthvalue(5, 0).values


@pytest.mark.parametrize("dynamic", [False, True])
def test_ordered_forms_equal_eager(endpoint: str, dynamic: bool) -> None:
    function = compiled(ordered_forms, dynamic=dynamic)
    for width in (70, 71, 5000):
        x = torch.randn(33, width)
        for ours, theirs in zip(function(x), ordered_forms(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def writes(x: torch.Tensor, rows: torch.Tensor, along: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sums = torch.zeros(12, x.shape[1]).index_add(0, rows, x[: rows.shape[0]])
    marked = x.scatter(1, along, 2.0)
    largest = x.scatter_reduce(1, along, x, "amax", include_self=False)
    changed = x.clone()
    changed[rows % 5] = 0.5
    cache = torch.zeros_like(x)
    cache[:, 3:5] = x[:, :2]
    return sums, marked, largest, changed, cache


def test_writes_at_indices_equal_eager(endpoint: str) -> None:
    x, rows = torch.randn(33, 70), torch.randint(0, 12, (20,))
    along = torch.randint(0, 70, (33, 70))
    got, reference = compiled(writes)(x, rows, along), writes(x, rows, along)
    for ours, theirs in zip(got, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


class Tagger(torch.nn.Module):
    """An embedding with a padding row, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16, padding_idx=3)
        self.head = torch.nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.table(tokens)).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, tokens.flatten())


def test_an_embedding_trains_as_in_eager(endpoint: str) -> None:
    torch.manual_seed(0)
    eager = Tagger()
    ours = copy.deepcopy(eager)
    tokens = torch.randint(0, 50, (8, 9))
    steps = [(eager, eager), (ours, compiled(ours))]
    optimizers = [torch.optim.SGD(model.parameters(), 0.5) for model, _ in steps]
    for _ in range(5):
        losses = []
        for (_, run), optimizer in zip(steps, optimizers, strict=True):
            optimizer.zero_grad()
            loss = run(tokens)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    torch.testing.assert_close(ours.table.weight, eager.table.weight)


@pytest.mark.parametrize("bad", [-1, 12])
def test_an_index_outside_its_axis_is_an_error_as_in_eager(endpoint: str, bad: int) -> None:
    def add(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros(12, 4).index_add(0, rows, x)

    run = compiled(add)
    x, rows = torch.randn(2, 4), torch.tensor([1, 2])
    torch.testing.assert_close(run(x, rows), add(x, rows))
    with pytest.raises((IndexError, RuntimeError)):
        add(x, torch.tensor([1, bad]))
    with pytest.raises(IndexError):
        run(x, torch.tensor([1, bad]))
