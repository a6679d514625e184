"""Calls of compiled models that CUDA graphs record and replay, each compared with eager.

A scenario gets a way to compile and a device. On a machine without a GPU its graphs are captured by
running it; on a GPU it runs with `reduce-overhead`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)


class Compile(Protocol):
    """As `torch.compile`, with the backend of the run."""

    def __call__(self, function: Any, **more: Any) -> Callable[..., Any]:
        """The compiled function; `mode` is a mode of kernelfarm, all else is torch's."""

    def settled(self, programs: int) -> None:
        """Returns as soon as so many programs have replaced eager execution."""


IN_THREADS = torch.__version__ >= "2.13"
"""Earlier versions record in one thread."""

CALLS = 6
"""One call warms up, one is recorded, the others are replays."""


@dataclass(frozen=True)
class Scenario:
    """`run(compile, device)` raises AssertionError if a result is not eager's.

    `reason`: why a GPU does not record it; empty if it does, `forward` if some calls of a backward
    graph may come before those of its forward graph are recorded. `least`: the number of
    recordings that there must be at least.
    """

    name: str
    run: Callable[[Compile, torch.device], None]
    reason: str = ""
    least: int = 1


def all_scenarios() -> Iterator[Scenario]:
    """Every scenario."""
    yield Scenario("inputs change", _inputs_change)
    yield Scenario("unaligned inputs", _unaligned)
    yield Scenario("sizes vary", _sizes_vary, least=3)
    yield Scenario("results feed the next call", _chained)
    yield Scenario("two models in one step", _two_models, least=2)
    yield Scenario("a result outlives the next call as a copy", _copied)
    yield Scenario("a cache is a buffer", _cache)
    yield Scenario("weights change in place", _weights_change)
    yield Scenario("weights move", _weights_move, least=2)
    yield Scenario("random numbers", _random)
    yield Scenario("a transformer's layer", _transformer)
    yield Scenario("training", _training, least=2)
    yield Scenario("training with sums of gradients", _accumulating, least=2)
    yield Scenario("training of two models", _training_of_two, least=4)
    yield Scenario("inference between steps of training", _training_and_inference, least=3)
    yield Scenario("training that begins eager", _swapped, "forward", least=2)
    yield Scenario("calls on another stream", _other_stream)
    yield Scenario("calls in another thread", _other_thread, "" if IN_THREADS else "thread")
    yield Scenario("calls that the caller records", _recorded_by_caller)
    yield Scenario("an argument is changed", _argument_changed, "mutated_input")
    yield Scenario("a number on the CPU", _number_on_cpu, "cpu_tensor")


class Block(nn.Module):
    """Two products with what is fused around them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's result."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Cached(nn.Module):
    """Writes rows to a cache at a position that is a tensor, and reads all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 32)
        self.register_buffer("cache", torch.zeros(16, 32))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """What the cache has after the write, weighted."""
        self.cache.index_copy_(0, at, self.project(x))
        return (self.cache * 0.5).cumsum(0)


class Attending(nn.Module):
    """Self-attention and a block."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.out, self.block = nn.Linear(64, 192), nn.Linear(64, 64), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's result."""
        q, k, v = self.parts(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.block(x + self.out(mixed.transpose(1, 2).flatten(2)))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Raises AssertionError unless the tensors are equal within rounding of float32."""
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


def made(module: nn.Module, device: torch.device) -> nn.Module:
    """The module on a device, with weights that are the same in each run."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return module.to(device)


def floats(device: torch.device, *shape: int, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers, the same in each run."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device)


def _inputs_change(compiled: Compile, device: torch.device) -> None:
    model = made(Block(), device)
    fast = compiled(model)
    with torch.no_grad():
        for seed in range(CALLS):
            x = floats(device, 8, 64, seed=seed)
            close(fast(x), model(x))


def _unaligned(compiled: Compile, device: torch.device) -> None:
    model = made(Block(), device)
    fast = compiled(model)
    with torch.no_grad():
        for seed in range(CALLS):
            x = floats(device, 8 * 64 + 1, seed=seed)[1:].view(8, 64)
            close(fast(x), model(x))


def _sizes_vary(compiled: Compile, device: torch.device) -> None:
    model = made(Block(), device)
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        for seed in range(CALLS):
            for rows in (5, 8, 31):
                x = floats(device, rows, 64, seed=seed)
                close(fast(x), model(x))


def _chained(compiled: Compile, device: torch.device) -> None:
    model = made(Block(), device)
    fast = compiled(model)
    with torch.no_grad():
        for seed in range(CALLS):
            x = floats(device, 8, 64, seed=seed)
            torch.compiler.cudagraph_mark_step_begin()
            close(fast(fast(x).clone()), model(model(x)))


def _two_models(compiled: Compile, device: torch.device) -> None:
    one, two = made(Block(), device), made(Attending(), device)
    fast, faster = compiled(one), compiled(two)
    with torch.no_grad():
        for seed in range(CALLS):
            x = floats(device, 2, 24, 64, seed=seed)
            torch.compiler.cudagraph_mark_step_begin()
            first = fast(x)
            close(faster(first), two(one(x)))
            close(first, one(x))


def _copied(compiled: Compile, device: torch.device) -> None:
    model = made(Block(), device)
    fast = compiled(model)
    kept = []
    with torch.no_grad():
        for seed in range(CALLS):
            kept.append(fast(floats(device, 8, 64, seed=seed)).clone())
        for seed, result in enumerate(kept):
            close(result, model(floats(device, 8, 64, seed=seed)))


def _cache(compiled: Compile, device: torch.device) -> None:
    model = made(Cached(), device)
    twin = copy.deepcopy(model)
    fast = compiled(model)
    with torch.no_grad():
        for step in range(CALLS):
            x, at = floats(device, 2, 32, seed=step), torch.tensor([step, 15 - step]).to(device)
            close(fast(x, at), twin(x, at))
            close(model.cache, twin.cache)


def _weights_change(compiled: Compile, device: torch.device) -> None:
    model = made(Block(), device)
    fast = compiled(model)
    x = floats(device, 8, 64)
    with torch.no_grad():
        for _ in range(CALLS):
            close(fast(x), model(x))
            for weight in model.parameters():
                weight.mul_(1.1)


def _weights_move(compiled: Compile, device: torch.device) -> None:
    model = made(Block(), device)
    fast = compiled(model)
    x = floats(device, 8, 64)
    with torch.no_grad():
        for call in range(2 * CALLS):
            if call == CALLS:
                model.up.weight.data = model.up.weight.data.clone() * 2
            close(fast(x), model(x))


def _random(compiled: Compile, device: torch.device) -> None:
    fast = compiled(lambda x: F.dropout(x, 0.5) * 2)
    x = floats(device, 64, 64).abs() + 1
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            runs.append([fast(x).clone() for _ in range(CALLS)])
    for one, two in zip(*runs, strict=True):
        assert torch.equal(one, two), "the same seed gave other numbers"
    one, two = runs[0][:2]
    assert not torch.equal(one, two), "two calls had the same random numbers"
    assert torch.all((one == 0) | (one == x * 4)), "other values than those of a dropout"
    assert 0.4 < float((one == 0).float().mean()) < 0.6, "another share of zeros than 0.5"


def _transformer(compiled: Compile, device: torch.device) -> None:
    model = made(Attending(), device)
    fast = compiled(model)
    with torch.inference_mode():
        for seed in range(CALLS):
            x = floats(device, 2, 24, 64, seed=seed)
            close(fast(x), model(x))


def _step(model: Any, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss)


def _trained(
    compiled: Compile, module: nn.Module, device: torch.device, *, adds_up: bool = False
) -> None:
    model = made(module, device)
    twin = copy.deepcopy(model)
    fast = compiled(model)
    if adds_up:  # a gradient that a recording made would be overwritten by the next step
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    for seed in range(2 * CALLS):
        x = floats(device, 2, 24, 64, seed=seed)
        for optimizer in (ours, theirs):
            optimizer.zero_grad(set_to_none=not adds_up)
        found, expected = _step(fast, ours, x), _step(twin, theirs, x)
        close(torch.tensor(found), torch.tensor(expected))
    for weight, expected in zip(model.parameters(), twin.parameters(), strict=True):
        close(weight, expected)


def _training(compiled: Compile, device: torch.device) -> None:
    _trained(compiled, Attending(), device)


def _accumulating(compiled: Compile, device: torch.device) -> None:
    _trained(compiled, Block(), device, adds_up=True)


def _training_of_two(compiled: Compile, device: torch.device) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Block(), Attending()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x))

    model = made(Pair(), device)
    twin = copy.deepcopy(model)
    one, two = compiled(model.one), compiled(model.two)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    for seed in range(2 * CALLS):
        x = floats(device, 2, 24, 64, seed=seed)
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        found = _step(lambda x: two(one(x)), ours, x)
        close(torch.tensor(found), torch.tensor(_step(twin, theirs, x)))


def _training_and_inference(compiled: Compile, device: torch.device) -> None:
    model = made(Block(), device)
    twin = copy.deepcopy(model)
    fast = compiled(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    for seed in range(2 * CALLS):
        x = floats(device, 8, 64, seed=seed)
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        _step(fast, ours, x)
        _step(twin, theirs, x)
        with torch.no_grad():
            close(fast(x), twin(x))


def _swapped(compiled: Compile, device: torch.device) -> None:
    model = made(Block(), device)
    twin = copy.deepcopy(model)
    fast = compiled(model, mode="swap")
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    for seed in range(3 * CALLS):
        x = floats(device, 8, 64, seed=seed)
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        found = _step(fast, ours, x)
        close(torch.tensor(found), torch.tensor(_step(twin, theirs, x)))
        if seed == 0:
            compiled.settled(2)


def _other_stream(compiled: Compile, device: torch.device) -> None:
    if device.type == "cpu":
        return _inputs_change(compiled, device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _inputs_change(compiled, device)
    return torch.cuda.current_stream().wait_stream(stream)


def _other_thread(compiled: Compile, device: torch.device) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_inputs_change, compiled, device).result()


def _recorded_by_caller(compiled: Compile, device: torch.device) -> None:
    """The memory of the caller's graph stays its own while a larger program takes its stream."""
    model, larger = made(Block(), device), made(Block(256), device)
    fast, faster = compiled(model), compiled(larger)
    x, y = floats(device, 8, 64), floats(device, 64, 256)
    with torch.no_grad():
        if device.type == "cpu":
            close(fast(x), model(x))
            return close(faster(y), larger(y))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(CALLS):
                close(fast(x), model(x))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                result = fast(x)
            close(faster(y), larger(y))
            others = [torch.ones(1 << shift, device=device) for shift in range(8, 18)]
            x.copy_(floats(device, 8, 64, seed=1))
            graph.replay()
            close(result, model(x))
            assert all(bool((other == 1).all()) for other in others), "the replay wrote elsewhere"
        return torch.cuda.current_stream().wait_stream(stream)


def _argument_changed(compiled: Compile, device: torch.device) -> None:
    def add(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total.sin() * 2

    fast = compiled(add)
    total, expected = floats(device, 40), floats(device, 40)
    with torch.no_grad():
        for seed in range(CALLS):
            x = floats(device, 40, seed=seed)
            close(fast(total, x), add(expected, x))
            close(total, expected)


def _number_on_cpu(compiled: Compile, device: torch.device) -> None:
    fast = compiled(lambda x, scale: (x * scale).sin())
    with torch.no_grad():
        for seed in range(CALLS):
            x, scale = floats(device, 40, seed=seed), torch.tensor(1.5 + seed)
            close(fast(x, scale), (x * scale).sin())
