"""What a forward graph saves of normalizations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.graph_ir import Graph
from tests.support.like_eager import numbers
from tests.support.traced_graphs import recording

Norm = Callable[[torch.Tensor], torch.Tensor]
WEIGHT, BIAS = numbers(8, seed=3), numbers(8, seed=4)


def group_norm(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 2, WEIGHT.to(x.dtype), BIAS.to(x.dtype))


def plain_group_norm(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 4)


def batch_norm(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, WEIGHT, BIAS, training=True)


def step(function: Norm, *shapes: tuple[int, ...], dynamic: bool = False) -> Graph:
    """The forward graph of calls whose gradients equal eager's."""
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    fast = torch.compile(function, backend=recording(found), dynamic=dynamic)
    for number, shape in enumerate(shapes):
        gradients = []
        for called in (function, fast):
            x = numbers(*shape, seed=number).requires_grad_()
            called(x).sin().mean().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-7)
    forward, *_ = found
    return forward.graph


def saved_images(graph: Graph) -> int:
    """The outputs of a forward graph with four axes, without its result."""
    kinds = [kind for kind in graph.output_types if kind is not None]
    return sum(kind.rank == 4 for kind in kinds) - 1


@pytest.mark.parametrize("norm", [group_norm, plain_group_norm])
def test_the_result_of_a_norm_before_an_activation_is_not_saved(norm):
    # Only its operand is: an argument, or the result of the cosine.
    assert saved_images(step(lambda x: F.silu(norm(x)), (2, 8, 4, 4))) == 0
    assert saved_images(step(lambda x: F.silu(norm(x.cos())), (2, 8, 4, 4))) == 1


def test_extents_may_vary():
    graph = step(lambda x: F.silu(group_norm(x)), (2, 8, 4, 4), (3, 8, 5, 6), dynamic=True)
    assert saved_images(graph) == 0
    assert len(graph.symbols) >= 3


def test_a_result_that_a_product_reads_is_saved():
    kernel = numbers(8, 8, 1, 1).requires_grad_()
    graph = step(lambda x: F.silu(F.conv2d(group_norm(x), kernel)), (2, 8, 4, 4))
    assert saved_images(graph) == 2  # of the norm and of the convolution


def test_half_statistics_are_too_coarse_to_compute_the_result_again():
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.silu(group_norm(x.bfloat16())).float()

    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    x = numbers(2, 8, 4, 4).requires_grad_()
    torch.compile(function, backend=recording(found))(x).sum().backward()
    statistics = [kind for kind in found[0].graph.output_types if kind and kind.rank == 2]
    is_wide = all(kind.dtype.itemsize_bytes == 4 for kind in statistics)
    assert saved_images(found[0].graph) == (1 if is_wide else 2)
