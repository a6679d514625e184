"""Inputs of a graph stand in the order of their uses, in whatever order Dynamo met them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.digest import program_key
from tests.support.traced_graphs import traced_one

X, WIDE, TALL = torch.randn(3), torch.randn(2, 3), torch.randn(5, 2)


def first_x(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return c @ (b @ a)


def first_weights(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    _met = (c.shape, b.shape, a.shape)  # Dynamo meets them in this order
    return c @ (b @ a)


def placeholders_of(function: Any, *args: Tensor) -> tuple[list[str], list[str], Tensor]:
    """Dynamo's order of inputs and ours, and what a call with ours gives."""
    found: list[list[str]] = []

    def backend(module: fx.GraphModule, _: Sequence[Any]) -> Any:
        order = InputOrder(module)
        for each in (module, order.module):
            found.append([node.name for node in each.graph.find_nodes(op="placeholder")])
        return order.called_as_before(order.module.forward)

    torch._dynamo.reset()
    result = torch.compile(function, backend=backend)(*args)
    return found[0], found[1], result


def test_inputs_stand_in_the_order_of_their_uses() -> None:
    met, ours, result = placeholders_of(first_weights, X, WIDE, TALL)
    assert ours == ["l_b_", "l_a_", "l_c_"]
    assert met != ours
    torch.testing.assert_close(result, TALL @ (WIDE @ X))


def test_the_order_in_which_inputs_are_met_is_in_no_key() -> None:
    keys = {
        program_key(traced_one(function, X, WIDE, TALL).graph, "cpu:x86-64-v3", ())
        for function in (first_x, first_weights)
    }
    assert len(keys) == 1


def test_a_varying_size_stays_before_the_tensor_that_has_it() -> None:
    rows, more = torch.randn(4, 3), torch.randn(6, 3)
    for tensor in (rows, more):
        torch._dynamo.mark_dynamic(tensor, 0)
    met, ours, result = placeholders_of(
        lambda a, b: (b.shape, a.shape) and (a.sum(0), b.sum(0))[1] + a.sum(0), rows, more
    )
    assert sorted(met) == sorted(ours)
    for size, tensor in (("s", "l_a_"), ("s", "l_b_")):
        before = ours[ours.index(tensor) - 1]
        assert before.startswith(size), ours
    torch.testing.assert_close(result, more.sum(0) + rows.sum(0))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        _met = (self.down.dtype, x.dtype, self.down.shape)
        return (x @ self.up).relu() @ self.down


@pytest.mark.parametrize("needs_gradients", [False, True])
@pytest.mark.usefixtures("endpoint")
def test_a_model_whose_inputs_are_met_in_another_order_runs_through_the_farm(
    needs_gradients: bool,
) -> None:
    block, x = _Block(), torch.randn(5, 3, requires_grad=needs_gradients)
    fast = torch.compile(block, backend="kernelfarm", options={"mode": "strict"})
    with torch.set_grad_enabled(needs_gradients):
        torch.testing.assert_close(fast(x), block(x))
        if needs_gradients:
            reference = torch.autograd.grad(block(x).square().sum(), (x, block.up, block.down))
            given = torch.autograd.grad(fast(x).square().sum(), (x, block.up, block.down))
            torch.testing.assert_close(given, reference)
