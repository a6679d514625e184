"""Compiled models on the CPU give eager's values, element types, shapes and strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from examples.real_inputs import WHOLE_GRAPHS, f, g
from kernelfarm.client import torch_backend
from tests.support.accuracy import assert_as_good_as_eager


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """The number of threads is among Dynamo's guards: a graph is captured anew for each."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


class Counted:
    """The backend in strict mode, and the number of its graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return torch_backend.kernelfarm(gm, inputs, options={"strict": True})


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", WHOLE_GRAPHS)
def test_real_inputs_are_one_graph_and_as_exact_as_eager(name: str, endpoint: str) -> None:
    source, backend = WHOLE_GRAPHS[name](), Counted()
    with torch.no_grad():
        result = torch.compile(source.model, backend=backend)(*source.args)
    assert_as_good_as_eager(result, source.model, *source.args)
    assert backend.graphs == 1


def seeded_f(x: torch.Tensor) -> torch.Tensor:
    """`f` with NumPy's next values fixed."""
    np.random.seed(3)
    return f(x)


def test_f_takes_eagers_branches_in_four_graphs(endpoint: str) -> None:
    backend, x = Counted(), torch.linspace(-1, 1, 5)
    with torch._dynamo.config.patch(use_numpy_random_stream=True):
        compiled = torch.compile(f, backend=backend)
        for shifted in (x + 30, x - 30):
            np.random.seed(3)
            assert_as_good_as_eager(compiled(shifted), seeded_f, shifted)
    # Before NumPy's call, between it and the branch, and each side.
    assert backend.graphs == 4


def test_g_takes_eagers_branches_in_three_graphs(endpoint: str) -> None:
    backend, b = Counted(), torch.linspace(-1, 1, 5)
    compiled = torch.compile(g, backend=backend)
    for a in (b + 30, b - 30):
        assert_as_good_as_eager(compiled(a, b), g, a, b)
    # Before the branch, and each side.
    assert backend.graphs == 3
