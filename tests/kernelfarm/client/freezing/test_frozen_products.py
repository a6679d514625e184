"""Which products of frozen models read packed weights, plain ones or panels."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from kernelfarm.client.capture.exported import export_model
from kernelfarm.client.freezing.exported import freeze_exported
from kernelfarm.client.freezing.order_weights import panels_of_matrix, turned_matrix
from kernelfarm.ir.product_choice import ProductChoice
from tests.support.frozen_calls import FrozenCalls, is_packable

LINEAR = "mkldnn._linear_pointwise.default"

LIBRARY, KERNELS = "cpu:x86-64-v3", "cpu:x86-64-v3-amd"
"""Targets whose products of many rows are the library's, and those of kernels."""
DOTS = "cpu:x86-64-v4-bf16-amd"


def packed(dtype: torch.dtype, plain: str = "aten.addmm.default") -> str:
    """The operator of a product that the library computes, by a packed weight if it can."""
    return LINEAR if is_packable(dtype) else plain


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
def test_a_layer_of_several_axes_has_its_activation_in_one_step(activation: str) -> None:
    """Its rows are viewed as axes after the step, not between the product and the activation."""
    torch.manual_seed(0)
    layer, function = nn.Linear(64, 96), getattr(functional, activation)
    calls, x = FrozenCalls(lambda x: function(layer(x)) * 2), torch.randn(2, 5, 64)
    torch.testing.assert_close(calls(x), function(layer(x)) * 2, atol=4e-6, rtol=4e-6)
    assert LINEAR in calls.targets
    assert not any(activation in target for target in calls.targets)


def test_a_product_of_one_row_keeps_its_plain_weight() -> None:
    """Kernels read a weight of f32 faster than the library reads a packed one."""
    first, second = nn.Linear(64, 96), nn.Linear(64, 96)
    calls, x = FrozenCalls(lambda x: (first(x[:1]), second(x))), torch.randn(2, 64)
    for ours, eager in zip(calls(x), (first(x[:1]), second(x)), strict=True):
        torch.testing.assert_close(ours, eager)
    assert [t for t in calls.targets if "mm" in t or "linear" in t] == [
        "aten.addmm.default",
        LINEAR,
    ]


class Columns(nn.Module):
    """A product by a weight (inner, columns)."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 96).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (n, 64) -> (n, 96)."""
        return x @ self.weight


@pytest.mark.parametrize(
    ("target", "dtype", "is_turned"),
    [
        (LIBRARY, torch.float32, True),
        (DOTS, torch.float32, True),
        (DOTS, torch.bfloat16, True),
        (LIBRARY, torch.bfloat16, False),
        (KERNELS, torch.bfloat16, True),
    ],
)
def test_kernels_read_rows_of_the_weight_of_a_product_of_one_row(
    target: str, dtype: torch.dtype, is_turned: bool
) -> None:
    model, x = Columns(dtype), torch.randn(1, 64).to(dtype)
    calls = FrozenCalls(model, target)
    torch.testing.assert_close(calls(x), model(x))
    assert calls.targets == (
        ["aten.t.default", "aten.mm.default"] if is_turned else [packed(dtype, "aten.mm.default")]
    )
    frozen = calls.frozen[-1]
    fold = [] if frozen is None else [*frozen.fold.graph.nodes]
    assert any(node.target is turned_matrix for node in fold) is is_turned


@pytest.mark.parametrize(
    ("rows", "inner", "dtype", "is_plain"),
    [
        (10, 512, torch.bfloat16, True),
        (11, 512, torch.bfloat16, False),
        (10, 528, torch.bfloat16, False),  # its terms fill no vectors of pairs
        (10, 480, torch.bfloat16, False),  # a small weight
        (12, 512, torch.float32, True),
        (13, 512, torch.float32, False),
    ],
)
def test_products_of_few_rows_keep_their_plain_weight(
    rows: int, inner: int, dtype: torch.dtype, *, is_plain: bool
) -> None:
    layer, small = nn.Linear(inner, 256).to(dtype), nn.Linear(inner, 60).to(dtype)
    calls, x = FrozenCalls(lambda x: (layer(x), small(x)), DOTS), torch.randn(rows, inner).to(dtype)
    for ours, eager in zip(calls(x), (layer(x), small(x)), strict=True):
        torch.testing.assert_close(ours, eager, atol=0.02, rtol=0.02)
    products = [t for t in calls.targets if "mm" in t or "linear" in t]
    assert products == ["aten.addmm.default" if is_plain else packed(dtype), packed(dtype)]


def test_a_weight_with_another_use_is_not_copied() -> None:
    model, packed = Columns(torch.float32), nn.Linear(64, 96)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return model(x[:1]), model.weight[3] + x[:, :1], packed(x)

    calls, x = FrozenCalls(function), torch.randn(2, 64)
    for ours, eager in zip(calls(x), function(x), strict=True):
        torch.testing.assert_close(ours, eager)
    products = [t for t in calls.targets if "mm" in t or "linear" in t or t == "aten.t.default"]
    assert products == ["aten.mm.default", LINEAR]


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "in_panels"),
    [
        (16, 256, 64, True),
        (15, 256, 64, False),
        (16, 264, 63, False),
        (16, 255, 64, False),  # less than 32 KiB
    ],
)
def test_products_in_tiles_read_panels(
    rows: int, inner: int, columns: int, *, in_panels: bool
) -> None:
    """As many rows and columns of bf16, and weights as large, as kernels compute in tiles."""
    first, narrow = nn.Linear(inner, columns).bfloat16(), nn.Linear(inner, 60).bfloat16()
    calls = FrozenCalls(lambda x: (first(x), narrow(x)), DOTS)
    x = torch.randn(rows, inner).bfloat16()
    for ours, eager in zip(calls(x), (first(x), narrow(x)), strict=True):
        torch.testing.assert_close(ours, eager, atol=0.02, rtol=0.02)
    products = [t for t in calls.targets if "mm" in t or "linear" in t]
    other = packed(torch.bfloat16)
    assert products == ["aten.addmm.default" if in_panels else other, other]
    frozen = calls.frozen[-1]
    fold = [] if frozen is None else [*frozen.fold.graph.nodes]
    assert sum(node.target is panels_of_matrix for node in fold) == in_panels


@pytest.mark.parametrize(
    ("target", "dtype", "in_panels"),
    [
        (DOTS, torch.bfloat16, True),
        (DOTS, torch.float32, True),
        (KERNELS, torch.float32, True),
        # On Intel's processors the library is faster with many rows.
        ("cpu:x86-64-v4", torch.float32, False),
        (LIBRARY, torch.float32, False),
    ],
)
def test_products_of_varying_numbers_of_rows_read_panels(
    target: str, dtype: torch.dtype, *, in_panels: bool
) -> None:
    layer = nn.Linear(1024, 640).to(dtype)
    calls = FrozenCalls(layer, target, dynamic=None)
    for rows in (3, 40, 2):
        x = torch.randn(rows, 1024).to(dtype)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(calls(x), layer(x), atol=0.02, rtol=0.02)
    assert len(calls.frozen) == 1
    assert calls.targets[-1] == ("aten.addmm.default" if in_panels else LINEAR)
    (frozen,) = calls.frozen
    fold = [] if frozen is None else [*frozen.fold.graph.nodes]
    assert sum(node.target is panels_of_matrix for node in fold) == in_panels


@pytest.mark.parametrize(("inner", "columns"), [(256, 128), (255, 130), (768, 96)])
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_view_of_panels_is_the_weight(inner: int, columns: int, is_turned: bool) -> None:
    layer = nn.Linear(inner, columns).bfloat16()
    matrix = nn.Parameter(layer.weight.detach().t().contiguous())
    function = layer if is_turned else lambda x: torch.addmm(layer.bias, x, matrix)
    calls, x = FrozenCalls(function, DOTS), torch.randn(16, inner).bfloat16()
    torch.testing.assert_close(calls(x), function(x), atol=0.02, rtol=0.02)
    assert "aten.permute.default" in calls.targets


@pytest.mark.parametrize("count", [1, 2])
def test_a_weight_of_several_products_in_tiles_has_no_copies(count: int) -> None:
    table = nn.Embedding(128, 256).bfloat16()

    def function(tokens: torch.Tensor) -> torch.Tensor:
        x = table(tokens)
        found = [functional.linear(x + number, table.weight) for number in range(count)]
        return torch.cat(found)

    calls, tokens = FrozenCalls(function, DOTS), torch.arange(16)
    torch.testing.assert_close(calls(tokens), function(tokens), atol=0.1, rtol=0.02)
    assert (calls.frozen == [None]) is (count > 1)


def test_weights_are_packed_if_the_library_computes_all_products() -> None:
    layer, x = nn.Linear(256, 64).bfloat16(), torch.randn(16, 256).bfloat16()
    calls = FrozenCalls(layer, DOTS, ProductChoice.LIBRARY)
    torch.testing.assert_close(calls(x), layer(x), atol=0.02, rtol=0.02)
    products = [t for t in calls.targets if "mm" in t or "linear" in t]
    assert products == [packed(torch.bfloat16)]


@pytest.mark.parametrize(
    ("targets", "is_packed"),
    [
        (["cpu:x86-64-v4-bf16-amd"], False),
        (["cpu:x86-64-v4-bf16-amd", "cpu:aarch64"], True),
    ],
)
def test_weights_of_an_exported_model_for_several_targets_are_packed_for_the_library(
    targets: list[str], is_packed: bool
) -> None:
    model = nn.Linear(768, 3072, dtype=torch.bfloat16).eval()
    exported = export_model(model, (torch.randn(128, 768, dtype=torch.bfloat16),))
    captured, constants = freeze_exported(exported, targets)
    assert (constants is None) == (is_packed and not is_packable(torch.bfloat16))
    operators = [node.op for node in captured.graph.nodes]
    has_packed = any("linear_pointwise" in name for name in operators)
    assert has_packed == (is_packed and is_packable(torch.bfloat16)), operators


class Quantized(nn.Module):
    """A layer whose weight is stored as integers of four bits, and one whose weight is not."""

    def __init__(self, terms: int) -> None:
        super().__init__()
        self.plain = nn.Linear(64, terms)
        packed = torch.randint(0, 256, (128, terms // 2), dtype=torch.uint8)
        self.register_buffer("packed", packed)
        self.register_buffer("scale", torch.rand(128, 1) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (n, 64) -> (n, 128)."""
        pairs = torch.stack((self.packed & 15, self.packed >> 4), -1)
        weight = (pairs.reshape(128, -1).to(x.dtype) - 8) * self.scale
        return functional.linear(self.plain(x), weight)


@pytest.mark.parametrize(("terms", "stays"), [(1024, True), (256, False)])
def test_a_weight_of_integers_is_not_computed_once(terms: int, *, stays: bool) -> None:
    """It would take eight times the memory. What other parameters make is computed once."""
    torch.manual_seed(0)
    model, x = Quantized(terms).eval(), torch.randn(3, 64)
    calls = FrozenCalls(model, LIBRARY)
    torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-4)
    assert LINEAR in calls.targets
    assert ("aten.stack.default" in calls.targets) == stays
