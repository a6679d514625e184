"""The short way to trace a graph gives what AOT Autograd gives, or says why it gives nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from examples.model_zoo import MODELS
from tests.support.two_ways import long_way, short_way

QUICK = {("bert", "varying"), ("lstm", "constant")}
LONG = {
    "llama-prefill": "an input that is written",
    "llama-decode": "an input that is written",
    "falcon": "a view that is written",
}
"""The models of the zoo that AOT Autograd must trace, and why."""


def refusals(function: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """Why AOT Autograd must trace the graphs of a call; empty for each that one run traced.

    What one run traced must be what AOT Autograd gives: graph, calling convention, key, guards.
    """
    short = short_way(function, *args, **options)
    long = long_way(function, *args, **options)
    assert len(short) == len(long) > 0
    for ours, theirs in zip(short, long, strict=True):
        if ours.made is not None:
            assert theirs.made is not None
            assert ours.made.key == theirs.made.key
            assert ours.made.sizes == theirs.made.sizes
            assert ours == theirs
    return [outcome.refusal for outcome in short]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in product(MODELS, ("constant", "varying"))
    ],
)
def test_models_have_the_same_graphs_keys_and_guards_in_both_ways(name: str, sizes: str) -> None:
    source = MODELS[name]()
    expected = LONG.get(name, "")
    options = {}
    if sizes == "varying":
        options["dynamic"] = True
    # Without `specialize_float`, varying sizes mean varying settings of modules, too.
    with torch.no_grad(), torch._dynamo.config.patch(specialize_float=True):
        assert refusals(source.model, *source.args, **options) == [expected]


def view_of_size(x: torch.Tensor) -> torch.Tensor:
    """AOT Autograd adds a guard that no operator needs when it reads the result's format."""
    return x.reshape(2, (x.shape[0] // 16) ** 2, -1).transpose(1, 2) * 2


def written_twice(x: torch.Tensor) -> torch.Tensor:
    total = x + 1
    total.relu_().mul_(3)
    total += x
    return total @ total - total.sum()


def filled(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty(4, 4)
    made.copy_(x).clamp_(max=1).masked_fill_(x > 1, 0.5)
    return made


def repeated(x: torch.Tensor) -> Any:
    """Equal calls, and calls that differ in one fact only: an argument's sign, layout or memory."""
    zeros = x * 0.0, x * -0.0, x * 0, x * False
    y, z = x + 1, x + 1
    views = y.view(-1), z.view(-1), y[1], z[1]
    products = x @ x, x @ x.t(), x.t() @ x, y @ z, y @ y
    written = [(y * 2).relu_() for _ in range(3)]
    parts = [torch.var_mean(part, 0) for part in (*x.chunk(2), *x.chunk(2))]
    drawn = torch.rand_like(x), torch.rand_like(x)
    return zeros, y, z, views, products, written, parts, drawn


def cast_between(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        half = x @ x
    return half, x @ x, half.float() @ x


TAKEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "a result that is an input": lambda x: (x, x + 1),
    "a result that is a view of an input": lambda x: (x.t(), x.sum()),
    "a result that begins where its input does": lambda x: (x.view(-1), x * 2),
    "results that share memory": lambda x: ((y := x * 2), y[1], y.view(2, 8)),
    "no work": lambda x: x.contiguous(),
    "results that are sizes": lambda x: (x * 2, x.shape[0], None),
    "a tensor made of numbers": lambda x: x[[2, 0]] + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "made tensors": lambda x: torch.full_like(x, 2) + torch.arange(4) + x.new_zeros(4) + x,
    "writes to values": written_twice,
    "writes to made tensors": filled,
    "several results of an operator": lambda x: torch.var_mean(x.chunk(2)[1], 0),
    "a complex value": lambda x: torch.fft.rfft(x).conj().real,
    "random numbers": lambda x: torch.rand_like(x) + F.dropout(x) + torch.randn(4),
    "an undeclared view of a value": lambda x: (x + 1).unsafe_chunk(2)[0] * 3,
    "repeated calls": repeated,
    "autocast between equal calls": cast_between,
    "varying sizes": view_of_size,
    "nested modules": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).eval(),
}


@pytest.mark.parametrize("sizes", ["constant", "varying"])
@pytest.mark.parametrize("name", TAKEN)
def test_what_one_run_traces_is_what_aot_autograd_gives(name: str, sizes: str) -> None:
    x = torch.randn(32, 64) if TAKEN[name] is view_of_size else torch.randn(4, 4)
    options = {"dynamic": True} if sizes == "varying" else {}
    with torch.no_grad(), torch._dynamo.config.patch(specialize_float=True):
        assert refusals(TAKEN[name], x, **options) == [""]


class _Wrapped(torch.Tensor):
    """A tensor subclass without behaviour of its own."""


def write_to_input(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def write_to_view(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y[1].zero_()
    return y


def write_wider(x: torch.Tensor) -> torch.Tensor:
    y = x.half()
    y += torch.ones(4)
    return y


REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "an input that is written": (write_to_input, "an input that is written"),
    "a value that changes its shape": (lambda x: (x + 1).t_() * 1, "an operator that writes"),
    "a view that is written": (write_to_view, "a view that is written"),
    "a view of a written value": (
        lambda x: (x + 1).relu_().view(-1) * 2,
        "a view of a value that was written",
    ),
    "a converting write": (write_wider, "a write that converts its value"),
    "an undeclared view of an input": (lambda x: x.unsafe_chunk(2)[0], "an undeclared view"),
    "a branch": (
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        "higher-order operators",
    ),
    "a check": (torch.linalg.inv, "effects"),
    "a view of an input as integers": (
        lambda x: x.view(torch.int32),
        "a view of an input with another element type",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_run_cannot_trace_is_refused_with_the_reason(name: str) -> None:
    function, reason = REFUSED[name]
    with torch.no_grad():
        assert refusals(function, torch.randn(4, 4)) == [reason]


def test_graphs_with_gradients_are_refused() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(4, 4)
    assert [outcome.refusal for outcome in short_way(layer, x)] == ["gradients"]


def test_a_graph_that_switches_gradients_on_is_refused() -> None:
    layer = nn.Linear(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return layer(x)

    with torch.no_grad():
        assert [o.refusal for o in short_way(function, torch.randn(4, 4))] == ["gradients"]


def test_a_view_of_one_of_several_inputs_that_share_memory_is_refused() -> None:
    x = torch.randn(4, 4)
    with torch.no_grad():
        assert refusals(lambda a, b: (a + b, a.view(-1)), x[:2], x[2:]) == [
            "arguments that share memory"
        ]
        assert refusals(lambda a, b: a + b, x[:2], x[2:]) == [""]


def test_gradients_that_nothing_needs_are_switched_as_the_graph_says() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        return y + x

    assert refusals(function, torch.randn(4, 4)) == [""]
    assert torch.is_grad_enabled()


def test_inference_mode_gives_the_same_graph() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
    x = torch.randn(3, 4)
    with torch.inference_mode():
        assert refusals(model, x) == [""]


def test_autocast_converts_each_weight_where_it_is_used() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(4, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert refusals(lambda x: layer(layer(x)), x) == [""]


def test_an_autocast_region_of_the_graph_gives_the_same_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    assert refusals(function, torch.randn(4, 4)) == [""]


def test_tensor_subclasses_are_refused() -> None:
    x = torch.randn(4, 4).as_subclass(_Wrapped)
    assert {outcome.refusal for outcome in short_way(lambda x: x * 2, x)} == {"tensor subclasses"}


def test_a_lazily_negated_input_is_refused() -> None:
    x = torch.randn(4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    (outcome,) = short_way(lambda x: x * 2, x)
    assert outcome.refusal == "an input with a lazy conjugate or sign"


def test_sizes_that_depend_on_data_are_refused() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        (outcome,) = short_way(lambda x: x.nonzero() * 2, torch.randn(4, 4))
    assert outcome.refusal == "sizes that depend on data"


VARYING_FLOATS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "a factor": lambda x, f: x * f,
    "a factor of a half type": lambda x, f: x.bfloat16() * f,
    "a computed float": lambda x, f: x / (2 * f + 1) - f,
    "a float and a size": lambda x, f: x * (f * x.shape[0]),
    "a condition on values": lambda x, f: (x > f, x + 1),
    "a filled tensor": lambda x, f: torch.full((4,), f) + x,
    "a constant of an operator": lambda x, f: F.gelu(x) + F.leaky_relu(x, f),
    "two floats in one operator": lambda x, f: x.clamp(-f, 2 * f),
    "an extent": lambda x, f: x.sum() + torch.ones(int(f * 10)),
    "a choice": lambda x, f: x * f if f > 0.2 else x,
    "an unused float": lambda x, f: x.relu(),
    "a write": lambda x, f: (x + 1).mul_(f),
    "a float that is returned": lambda x, f: (x * f, f),
    "an exponent": lambda x, f: x.abs().pow(f),
    "attention": lambda x, f: F.scaled_dot_product_attention(*[x.view(1, 1, 2, 2)] * 3, scale=f),
}


@pytest.mark.parametrize("name", VARYING_FLOATS)
def test_floats_that_vary_become_what_aot_autograd_makes_of_them(name: str) -> None:
    with torch.no_grad():
        assert refusals(VARYING_FLOATS[name], torch.randn(4), 0.37, dynamic=True) == [""]


@pytest.mark.parametrize(
    "name", [n if n == "vit" else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_models_whose_settings_vary_have_the_same_graphs_keys_and_guards(name: str) -> None:
    source = MODELS[name]()
    with torch.no_grad():
        assert refusals(source.model, *source.args, dynamic=True) == [LONG.get(name, "")]
