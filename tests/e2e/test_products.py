"""Products with few rows through a running farm: kernels compute them where they are faster."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelfarm.client import torch_backend
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.program_ir import ExternCall, Launch
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.traced_graphs import traced_one


class GatedLayer(nn.Module):
    """The feed-forward layer of Llama, as wide as its weights have to be."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, width, bias=False)
        self.down = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.skipif(host_cpu_target() == "cpu:aarch64", reason="no product was measured on aarch64")
@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.bfloat16), (8, torch.float32)])
def test_a_layer_of_few_rows_is_computed_by_kernels_alone(
    rows: int, dtype: torch.dtype, endpoint: str
) -> None:
    torch.manual_seed(rows)
    layer = GatedLayer().to(dtype)
    x = torch.randn(rows, 1024).to(dtype)
    strict = lambda gm, inputs: torch_backend.kernelfarm(gm, inputs, options={"strict": True})  # noqa: E731
    with torch.no_grad():
        graph = traced_one(layer, x).graph
        client = connect(endpoint, 60)
        (program,) = client.compile(graph, [host_cpu_target()])
        client.close()
        torch._dynamo.reset()
        ours, eager = torch.compile(layer, backend=strict)(x), layer(x)
        exact = layer.double()(x.double())
    assert not [step for step in program.plan.steps if isinstance(step, ExternCall)]
    errors = [(y.double() - exact).abs().max().item() for y in (ours, eager)]
    assert errors[0] <= 4 * errors[1]


@pytest.mark.parametrize(("rows", "form"), [(1, "persistent"), (8, "product")])
def test_a_layer_of_few_rows_needs_no_library_on_hopper(
    rows: int, form: str, vendor_farm: Farm
) -> None:
    """Two kernels: both products, SiLU and multiplication; the third product and the residual."""
    with torch.no_grad(), torch.device("meta"):
        layer = GatedLayer(1024).bfloat16()
        graph = traced_one(layer, torch.empty(rows, 1024, dtype=torch.bfloat16)).graph
    client = connect(vendor_farm.endpoint, TIMEOUT_S)
    (program,) = client.compile(graph, ["cuda:sm_90a"])
    client.close()
    assert [type(step) for step in program.plan.steps] == [Launch, Launch]
    for variants in program.kernels:
        for variant in variants:
            assert dict(variant.launch.extras)["form"] == form
            assert variant.launch.spills == 0


def feed_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, back: torch.Tensor
) -> torch.Tensor:
    """A layer of GPT-2, whose weights have contiguous columns."""
    inner = nn.functional.gelu(torch.addmm(bias, x, weight), approximate="tanh")
    return x + inner @ back


@pytest.mark.parametrize(
    ("choice", "externs", "launches"),
    [(ProductChoice.LIBRARY, 2, 2), (ProductChoice.OWN, 0, 2)],
)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "rocm:gfx942", "ascend:910b"])
def test_a_request_chooses_who_computes_products(
    choice: ProductChoice, externs: int, launches: int, target: str, vendor_farm: Farm
) -> None:
    with torch.no_grad(), torch.device("meta"):
        shapes = ((4, 256), (256, 1024), (1024,), (1024, 256))
        args = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
        graph = traced_one(feed_forward, *args).graph
    client = connect(vendor_farm.endpoint, TIMEOUT_S)
    (program,) = client.compile(graph, [target], options=CompileOptions(products=choice))
    (by_default,) = client.compile(graph, [target])
    client.close()
    steps = [type(step) for step in program.plan.steps]
    assert (steps.count(ExternCall), steps.count(Launch)) == (externs, launches)
    assert program.key != by_default.key
