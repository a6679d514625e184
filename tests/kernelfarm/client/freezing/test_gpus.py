"""Models that are frozen for GPUs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

import kernelfarm
from examples.integer_weights import Float8Linear
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError
from kernelfarm.ir.contractions import find_contraction
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.frozen_graphs import captured_frozen, frozen_one

TARGET = "cuda:sm_90a"


class Block(nn.Module):
    """A residual block whose weights are channels first."""

    def __init__(self, channels: int = 32, *, has_groups: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        groups = nn.Conv2d(channels, channels, 3, padding=1, groups=4)
        self.grouped = groups if has_groups else None
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        for norm in self.norms:
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.relu(self.norms[0](self.first(x)))
        found = torch.relu(self.norms[1](self.second(found)) + x)
        return found if self.grouped is None else found + self.grouped(x)


@pytest.fixture
def block() -> Block:
    torch.manual_seed(0)
    return Block().eval().bfloat16()


def image(channels: int = 32) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, channels, 8, 8, dtype=torch.bfloat16)


def test_norms_are_folded_and_weights_have_their_channels_last(block: Block) -> None:
    frozen, _ = frozen_one(block, TARGET, image())
    operators = [str(n.target) for n in frozen.module.graph.nodes if n.op == "call_function"]
    assert not any("batch_norm" in name for name in operators)
    made = [
        value
        for n in frozen.module.graph.find_nodes(op="placeholder")
        if n.name.startswith("frozen") and (value := n.meta["val"]).dim() == 4
    ]
    assert len(made) == 2  # the weight of groups stays, in which order the library wants it or not
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in made)


def test_a_frozen_program_copies_no_weight() -> None:
    block = Block(has_groups=False).eval().bfloat16()
    x = image().contiguous(memory_format=torch.channels_last)
    target = target_facts(TARGET)
    frozen, _ = frozen_one(block, TARGET, x)
    low = decompose_to_prims(
        captured_frozen(frozen).graph, max_sorted_elems=target.max_sorted_elems
    )
    program = optimize(low.graph, target).program
    products = [k for k in program.kernels if find_contraction(k) is not None]
    assert len(products) == 2
    assert len(program.plan.steps) == 2


def test_a_frozen_weight_of_groups_that_kernels_compute_is_not_copied() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, groups=2), nn.ReLU()).eval().bfloat16()
    x = image(64).contiguous(memory_format=torch.channels_last)
    target = target_facts(TARGET)
    frozen, _ = frozen_one(layer, TARGET, x)
    low = decompose_to_prims(
        captured_frozen(frozen).graph, max_sorted_elems=target.max_sorted_elems
    )
    program = optimize(low.graph, target).program
    assert [find_contraction(kernel) is not None for kernel in program.kernels] == [True]
    assert len(program.plan.steps) == 1


def test_a_frozen_depthwise_weight_is_in_the_order_of_the_template() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(32, 32, 5, padding=2, stride=2, groups=32).eval().bfloat16()
    x = image().contiguous(memory_format=torch.channels_last)
    target = target_facts(TARGET)
    frozen, inputs = frozen_one(layer, TARGET, x)
    (weight,) = (
        n.meta["val"]
        for n in frozen.module.graph.find_nodes(op="placeholder")
        if n.name.startswith("frozen")
    )
    assert weight.shape == (5, 5, 32) and weight.is_contiguous()
    low = decompose_to_prims(
        captured_frozen(frozen).graph, max_sorted_elems=target.max_sorted_elems
    )
    program = optimize(low.graph, target).program
    assert len(program.plan.steps) == 1  # nothing turns the weight
    with torch.no_grad():
        constants = frozen.fold(*(inputs[position] for position in frozen.parameters))
        (ours,) = fx.GraphModule({}, frozen.module.graph)(*inputs, *constants)
        torch.testing.assert_close(ours, layer(x))


def test_a_frozen_graph_gives_what_the_model_gives(block: Block) -> None:
    """Its results have the model's layout, whatever that of the convolutions in it is."""
    frozen, inputs = frozen_one(block, TARGET, image())
    with torch.no_grad():
        constants = frozen.fold(*(inputs[position] for position in frozen.parameters))
        (ours,) = fx.GraphModule({}, frozen.module.graph)(*inputs, *constants)
        eager, exact = block(image()), copy.deepcopy(block).double()(image().double())
    errors = [(found.double() - exact).abs().max().item() for found in (ours, eager)]
    assert errors[0] <= 2 * errors[1]
    assert ours.stride() == eager.stride()


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([TARGET, "cpu:x86-64-v3"], "expected processors alone, or GPUs alone"),
        (["ascend:910b"], "expected processors"),
    ],
)
def test_targets_that_share_no_constants_are_refused(
    endpoint: str, block: Block, targets: list[str], message: str
) -> None:
    with pytest.raises(CallerError, match=message):
        kernelfarm.compile(block, (image(),), targets=targets, is_frozen=True)


class Float8AndScaled(nn.Module):
    """A layer of 8-bit floats, and one whose weight is scaled."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.first = Float8Linear(nn.Linear(k, n).bfloat16())
        self.second = nn.Linear(n, 64).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.first(x), self.second.weight * 2)


@pytest.mark.parametrize(("target", "stays"), [(TARGET, True), ("cpu:x86-64-v4-amd", False)])
def test_a_weight_of_8_bit_floats_stays_on_a_gpu(target: str, *, stays: bool) -> None:
    """Scales of its blocks, spread over the weight, would take four times its memory."""
    n, k = 1024, 1024
    frozen, _ = frozen_one(Float8AndScaled(n, k).eval(), target, torch.empty(1, k).bfloat16())
    graph = frozen.module.graph
    made = {a: a.meta["val"] for a in graph.find_nodes(op="placeholder") if "frozen" in a.name}
    assert max(value.numel() for value in made.values()) == (64 * n if stays else n * k)
    low = decompose_to_prims(captured_frozen(frozen).graph)
    program = optimize(low.graph, target_facts(TARGET)).program
    read = [param for kernel in program.kernels for param in kernel.params]
    assert any(param.dtype is DType.F8E4M3FN for param in read) is stays
    assert not any(param.dtype is DType.F32 and param.size_elems.as_int() > n for param in read)
