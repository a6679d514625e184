"""A graph that was traced before is not traced again, and behaves in the same way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernelfarm.client import counters
from tests.support.like_eager import assert_like_eager, compiled, numbers


@pytest.fixture(autouse=True)
def empty_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk tier without traces."""
    monkeypatch.setenv("KERNELFARM_DISK_CACHE_DIR", str(tmp_path))
    counters.reset()
    return tmp_path


def counted(name: str) -> int:
    return counters.snapshot().get(f"warm.{name}", 0)


def reasons() -> list[str]:
    return [name for name in counters.snapshot() if name.startswith("warm.traced.")]


def assert_warm_like_eager(function: Callable[..., Any], make: Any, **options: Any) -> None:
    """The first call traces and stores, the second one finds the trace; both equal eager."""
    assert_like_eager(function, make, **options)
    stored = counted("stored")
    assert stored == counted("misses") >= 1, counters.snapshot()
    assert counted("hits") == 0
    torch._dynamo.reset()
    assert_like_eager(function, make, **options)
    assert (counted("hits"), counted("stored")) == (stored, stored), counters.snapshot()


def writes_an_input(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    y[1:].mul_(2)
    return x.sum(0) + y[0]


def gives_inputs_and_views_of_them(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y.mul_(3)
    return x, x.t(), x[1:, ::2], y.view(-1), x + y


def gives_views_of_one_result(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = (x * y).relu()
    return z, z[0], z.t(), z.view(-1)[3:], z


def holds_constants(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([[0.5, -1.5, 2.0]])
    return (x @ y.t()).softmax(-1) + table.sum() + torch.arange(4) + torch.ones(4, 4).triu()


def uses_steps_of_the_framework(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values = torch.linalg.svdvals(x)
    rows = nn.functional.scaled_dot_product_attention(
        x.view(1, 1, 4, 6), y.view(1, 1, 4, 6), y.view(1, 1, 4, 6)
    )
    sorted_, positions = torch.sort(torch.cat([x.exp(), y], 1))
    return values, rows.transpose(1, 2).reshape(4, 6) @ y.t(), sorted_, positions


def draws(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5) + torch.rand_like(y) * 0


@pytest.mark.parametrize(
    "function",
    [
        writes_an_input,
        gives_inputs_and_views_of_them,
        gives_views_of_one_result,
        holds_constants,
        uses_steps_of_the_framework,
    ],
)
def test_a_known_graph_is_like_eager(function):
    assert_warm_like_eager(function, lambda: (numbers(4, 6), numbers(4, 6, seed=1)), rtol=1e-5)


def test_a_known_graph_with_sizes_that_vary_is_like_eager():
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ y).softmax(-1), x.reshape(-1)[: y.shape[0]], x.t()

    fast = None
    for process in range(2):
        torch._dynamo.reset()
        fast = compiled(function, dynamic=True)
        for rows in (3, 5, 9):
            x, y = numbers(rows, 4), numbers(4, 7, seed=rows)
            for ours, theirs in zip(fast(x, y), function(x, y), strict=True):
                torch.testing.assert_close(ours, theirs)
                assert ours.stride() == theirs.stride()
        assert counted("hits") == process, counters.snapshot()


def test_types_are_those_of_the_callers_autocast():
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y.t()).relu()

    def autocast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return function(x, y)

    args = numbers(4, 6), numbers(4, 6, seed=1)
    for _ in range(2):
        torch._dynamo.reset()
        assert compiled(function)(*args).dtype is torch.float32
        assert compiled(autocast)(*args).dtype is torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(compiled(function)(*args), function(*args))
    assert counted("hits") == 3


def test_random_numbers_are_drawn_anew_at_each_call():
    args = torch.ones(64, 64), torch.ones(64, 64)
    for _ in range(2):
        torch._dynamo.reset()
        fast = compiled(draws)
        assert not torch.equal(fast(*args), fast(*args))
    assert counted("hits") == 1


def test_names_of_modules_do_not_matter_and_weights_are_the_callers_own():
    class Named(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name
            setattr(self, name, nn.Linear(6, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(getattr(self, self.name)(x))

    x = numbers(4, 6)
    for name in ("first", "second"):
        torch._dynamo.reset()
        model = Named(name)
        with torch.no_grad():
            torch.testing.assert_close(compiled(model)(x), model(x))
    assert (counted("stored"), counted("hits")) == (1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (x.double(), y.double()),
        lambda x, y: (x[:3], y[:3]),
        lambda x, y: (x.t().contiguous().t(), y),
        lambda x, y: (x, x),
        lambda x, y: (x, x.detach()),
    ],
    ids=["element type", "shape", "strides", "one tensor twice", "one memory"],
)
def test_what_the_inputs_are_is_in_the_digest(change):
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y

    args = numbers(4, 6), numbers(4, 6, seed=1)
    compiled(function)(*args)
    torch._dynamo.reset()
    other = change(*args)
    torch.testing.assert_close(compiled(function)(*other), function(*other))
    assert counted("hits") == 0


@pytest.mark.parametrize("number", [2.0, 2, -2.0, True])
def test_arguments_of_calls_are_in_the_digest(number):
    x = numbers(4, 6)
    compiled(lambda x: x * 3.0)(x)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(lambda x: x * number)(x), x * number)
    assert counted("hits") == 0


def test_gradients_are_always_traced():
    x = numbers(4, 6).requires_grad_()
    for _ in range(2):
        torch._dynamo.reset()
        (x_grad,) = torch.autograd.grad(compiled(lambda x: x.sin().sum())(x), x)
        torch.testing.assert_close(x_grad, x.detach().cos())
    assert counted("hits") == counted("stored") == 0


def test_a_function_of_the_users_own_is_always_traced():
    @torch.library.custom_op("kernelfarm_test::warm_twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    x = numbers(4, 6)
    torch.testing.assert_close(compiled(lambda x: twice(x) + 1)(x), x * 2 + 1)
    assert reasons() == ["warm.traced.an operator of another library"]


def test_inputs_that_share_written_memory_are_always_traced():
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    for _ in range(2):
        torch._dynamo.reset()
        memory = numbers(8)
        theirs = memory.clone()
        expected = function(theirs[:4], theirs[2:6])
        torch.testing.assert_close(compiled(function)(memory[:4], memory[2:6]), expected)
    assert counted("hits") == 0
    assert reasons()


@pytest.mark.parametrize("harm", ["corrupt", "another user's", "cut"])
def test_a_file_that_cannot_be_trusted_is_not_used(harm, empty_disk):
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    x = numbers(4, 6)
    compiled(function)(x)
    (path,) = (p for p in empty_disk.glob("traces/*/*"))
    content = path.read_bytes()
    if harm == "another user's":
        os.chmod(path, 0o666)
    elif harm == "cut":
        path.write_bytes(content[:-7])
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert counted("hits") == 0
    assert counted("unreadable") + counters.snapshot().get("refused.warm.malformed_message", 0) == 1
