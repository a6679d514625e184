"""Fragments of products: what is cut out of a captured graph, and that it computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, linear, silu, softmax

from kernelfarm.client.capture import product_fragments as cutting
from kernelfarm.client.capture.product_fragments import ProductFragment, product_fragments
from kernelfarm.client.runtime.captured_graph import CapturedGraphRunner
from kernelfarm.ir.check_graph import check_client_graph
from tests.support.traced_graphs import traced_one

X, W, B = torch.randn(4, 8, 64), torch.randn(96, 64), torch.randn(96)


def fragments_of(function: Callable[..., Any], *args: torch.Tensor) -> list[ProductFragment]:
    with torch.no_grad():
        found = product_fragments(traced_one(function, *args))
    assert not found.refused
    for fragment in found.fragments:
        check_client_graph(fragment.captured.graph)
    return list(found.fragments)


def operators(fragment: ProductFragment) -> list[str]:
    """The names of a fragment's operators, without views."""
    names = [node.op.split(".")[1] for node in fragment.captured.graph.nodes]
    return [name for name in names if name not in {"view", "_unsafe_view", "t"}]


def run(fragment: ProductFragment, *args: torch.Tensor) -> torch.Tensor:
    (result,) = CapturedGraphRunner(fragment.captured).boxed()([*args])
    return result


def test_a_linear_layer_has_its_views_bias_and_activation() -> None:
    (found,) = fragments_of(lambda x, w, b: softmax(gelu(linear(x, w, b)), -1), X, W, B)
    assert operators(found) == ["addmm", "gelu"]
    assert [tuple(map(int, map(str, kind.shape))) for kind in found.inputs] == [
        (4, 8, 64),
        (96, 64),
        (96,),
    ]
    torch.testing.assert_close(run(found, X, W, B), gelu(linear(X, W, B)))


def test_a_gate_and_a_residual_are_inputs_if_they_do_not_depend_on_the_product() -> None:
    def feed_forward(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return silu(linear(x, gate)) * linear(x, up) + x

    square = torch.randn(64, 64)
    first, second = fragments_of(feed_forward, X, square, square.t().contiguous())
    assert operators(first) == ["mm", "silu", "mul", "add"]
    assert operators(second) == ["mm", "mul", "add"]


def test_what_depends_on_a_sum_of_the_product_is_outside() -> None:
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = linear(x, w).sin()
        return y / y.sum()

    (found,) = fragments_of(scaled, X, W)
    assert operators(found) == ["mm", "sin"]


def test_a_weight_that_the_model_computes_from_integers_is_inside() -> None:
    def quantized(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return linear(x, w.to(x.dtype) * scale)

    integers = torch.randint(-8, 8, (96, 64), dtype=torch.int8)
    (found,) = fragments_of(quantized, X, integers, torch.rand(96, 1))
    assert operators(found) == ["_to_copy", "mul", "mm"]


def test_equal_layers_are_one_fragment() -> None:
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    found = fragments_of(lambda x: layers(x).cos(), torch.randn(8, 64))
    assert [fragment.nodes for fragment in found] == [(1, 3), (5,)]


@pytest.mark.parametrize(
    ("limit", "reason"), [("MAX_INPUT_BYTES", "memory"), ("MAX_FRAGMENTS", "many")]
)
def test_what_is_too_large_has_none(
    limit: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, limit, 0)
    with torch.no_grad():
        found = product_fragments(traced_one(linear, X, W))
    assert (found.fragments, found.refused) == ((), (reason,))


def test_products_of_varying_sizes_have_none() -> None:
    x = torch.randn(8, 64)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        found = product_fragments(traced_one(linear, x, W))
    assert (found.fragments, found.refused) == ((), ("sizes",))


def test_products_that_no_kernel_computes_have_none() -> None:
    x = torch.randn(8, 64, dtype=torch.complex64)
    with torch.no_grad():
        found = product_fragments(traced_one(torch.mm, x, x.t()))
    assert (found.fragments, found.refused) == ((), ("types",))


def test_long_chains_end_at_the_limit() -> None:
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = linear(x, w)
        for _ in range(100):
            y = y.sin()
        return y

    (found,) = fragments_of(chain, X, W)
    assert len(found.captured.graph.nodes) == cutting.MAX_FRAGMENT_NODES
