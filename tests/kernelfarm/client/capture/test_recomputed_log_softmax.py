"""What a forward graph saves of log-softmax: numbers of each row, and no tensor of its size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
from tests.support.like_eager import numbers
from tests.support.traced_graphs import recording

Loss = Callable[[torch.Tensor], torch.Tensor]
ROWS, CLASSES = 6, 32
LABELS = torch.tensor([3, 31, 0, -100, 7, 7])
WEIGHT = numbers(CLASSES, seed=3).abs()


def cross_entropy(x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, LABELS)


def weighted(x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, LABELS, WEIGHT.to(x.dtype), reduction="none").sin().sum()


def smoothed(x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, LABELS, label_smoothing=0.1)


def of_soft_labels(x: torch.Tensor) -> torch.Tensor:
    return -(F.log_softmax(x, -1) * x.detach().sigmoid()).sum()


def of_images(x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.view(2, CLASSES, 3, 1), LABELS.view(2, 3, 1))


def step(
    loss: Loss, *rows: int, dtype: torch.dtype = torch.float32, dynamic: bool = False
) -> tuple[Graph, Graph]:
    """The forward and backward graph of a loss, whose gradients err no more than eager's."""
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    # Before the loss is a product, whose result is in memory.
    weight = numbers(8, CLASSES, seed=1).to(dtype)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return loss(x @ weight.to(x.dtype))

    fast = torch.compile(plain, backend=recording(found), dynamic=dynamic, fullgraph=True)
    for count in rows:
        x = numbers(count, 8, seed=count).to(dtype)
        exact = gradient(plain, x.double())
        errors = [(gradient(each, x) - exact).abs().max() for each in (plain, fast)]
        assert errors[1] <= 1.5 * errors[0] + 1e-5 * exact.abs().max()
    forward, backward = found
    return forward.graph, backward.graph


def gradient(function: Loss, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    function(x).backward()
    assert x.grad is not None
    return x.grad.double()


def saved_rows(graph: Graph) -> list[str]:
    """The types of the outputs of a forward graph that have an element for each class."""
    kinds = [kind for kind in graph.output_types if kind is not None and kind.rank > 1]
    return [kind.dtype.value for kind in kinds if str(kind.shape[1]) != "1"]


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("loss", [cross_entropy, weighted, smoothed, of_soft_labels, of_images])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_operand_is_saved_and_not_the_result(loss: Loss, dtype: torch.dtype) -> None:
    forward, backward = step(loss, ROWS, dtype=dtype)
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float64: "f64"}
    assert saved_rows(forward) == [names[dtype]]
    assert "aten.amax.default" in ops(forward)
    assert "aten.amax.default" not in ops(backward)


def test_numbers_of_rows_vary_with_the_batch() -> None:
    forward, _ = step(lambda x: F.cross_entropy(x, LABELS[: x.shape[0]]), 4, 6, dynamic=True)
    assert forward.symbols
    assert len(saved_rows(forward)) == 1


def test_logits_of_16_bits_are_saved_before_they_are_widened() -> None:
    forward, _ = step(lambda x: F.cross_entropy(x.float(), LABELS), ROWS, dtype=torch.bfloat16)
    assert saved_rows(forward) == ["bf16"]


def test_a_result_that_a_product_reads_is_saved() -> None:
    def squared(x: torch.Tensor) -> torch.Tensor:
        result = F.log_softmax(x, -1)
        return (result @ result.t()).sin().sum()

    forward, _ = step(squared, ROWS)
    assert "aten._log_softmax.default" in ops(forward)
    assert "aten.amax.default" not in ops(forward)
