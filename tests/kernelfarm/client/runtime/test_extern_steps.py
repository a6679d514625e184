"""Steps that the framework runs, in programs made by all services."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.runtime.extern_node import ExternNode
from tests.support.in_process_compiler import compiled_here


def test_a_singular_matrix_is_an_error_as_in_eager() -> None:
    compiled, counts = compiled_here(torch.linalg.inv)
    matrix = torch.tensor([[2.0, 1.0], [0.0, 4.0]])
    torch.testing.assert_close(compiled(matrix), torch.linalg.inv(matrix))
    assert counts.externs == ["aten.linalg_inv_ex.default", "with_effects"]
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        compiled(torch.zeros(2, 2))


def test_a_step_takes_temporaries_that_are_all_empty() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mode(x.exp(), 1).values

    x = torch.zeros(0, 3)
    assert compiled_here(function)[0](x).shape == function(x).shape == (0,)


def test_a_step_s_result_has_the_type_that_was_traced() -> None:
    """The trace says that the saved statistics are f32; the kernel gives bf16."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten._batch_norm_with_update_functional(
            x, torch.ones(3), torch.zeros(3), torch.zeros(3), torch.ones(3), 0.1, 1e-5
        )

    x = torch.randn(4, 3, 5).to(torch.bfloat16)
    for result, expected in zip(compiled_here(function)[0](x), function(x), strict=True):
        torch.testing.assert_close(result, expected, check_dtype=False)


def test_a_step_gets_a_contiguous_tensor_where_the_trace_had_one() -> None:
    """The framework's kernel reads wrong places otherwise, without a check."""

    def function(x: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(indices, x, offsets)

    table = torch.randn(10, 5, requires_grad=True)  # in training the framework does it
    args = table, torch.arange(10)[::2], torch.tensor([0, 2, 2])
    compiled, counts = compiled_here(function)
    torch.testing.assert_close(compiled(*args), function(*args))
    assert counts.externs == ["aten._embedding_bag.default"]


def test_what_a_step_returns_is_never_kept_where_another_value_will_lie() -> None:
    """`unsafe_split` returns views of its operand, and says nowhere that it does."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4, 6)
    split = graph.call_function(torch.ops.aten.unsafe_split.Tensor, (x, 3, 1))
    assert ExternNode(split, {}).may_alias
    product = graph.call_function(torch.ops.aten.mm.default, (x, x))
    assert not ExternNode(product, {}).may_alias


def test_a_part_of_nothing_may_begin_beyond_its_buffer() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mode(x[:, 4:6], 1).values

    x = torch.zeros(0, 6)
    assert compiled_here(function)[0](x).shape == function(x).shape == (0,)


def test_a_step_whose_shapes_tracing_misstates_is_refused_before_it_runs() -> None:
    table = torch.randn(10, 5, dtype=torch.bfloat16, requires_grad=True)
    compiled, _ = compiled_here(
        lambda x: torch.nn.functional.embedding_bag(
            torch.arange(4), x, torch.tensor([0, 2]), mode="sum"
        )
    )
    with pytest.raises(UnsupportedGraphError, match="sums of bags of bfloat16"):
        compiled(table)


class _Calls(TorchDispatchMode):
    """The names of the operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN here")
@pytest.mark.parametrize("use", ["none", "later", "returned", "input", "both", "small"])
def test_a_sum_of_convolutions_takes_the_memory_of_a_result_that_nothing_reads_later(
    use: str,
) -> None:
    """oneDNN's other form copies the result first. Inputs, and what is read again, stay."""
    geometry = ([0, 0], [1, 1], [1, 1], 1)
    convolve = torch.ops.mkldnn._convolution_pointwise

    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = convolve(x, weight, None, *geometry, "none", [], "")
        other = x if use == "input" else first
        image = first if use == "both" else x
        found = convolve.binary(
            image, other, weight, None, *geometry, "add", None, "relu", [], None
        )
        if use == "later":
            return (found.sin() + first,)
        return (found, first) if use == "returned" else (found,)

    side = 4 if use == "small" else 12
    x = torch.randn(2, 8, side, side).contiguous(memory_format=torch.channels_last)
    weight, before = torch.randn(8, 8, 1, 1), x.clone()
    compiled, counts = compiled_here(function)
    with torch.library._scoped_library("mkldnn", "IMPL") as library:
        # Frozen models state the shape of the result themselves.
        shape_of = lambda image, other, *_: torch.empty_like(other)  # noqa: E731
        library.impl("_convolution_pointwise.binary", shape_of, "Meta")
        compiled(x, weight)
    for _ in range(2):
        with _Calls() as calls:
            found = compiled(x, weight)
        for ours, eager in zip(found, function(x, weight), strict=True):
            torch.testing.assert_close(ours, eager)
        assert torch.equal(x, before)
    assert counts.externs.count("mkldnn._convolution_pointwise.binary") == 1
    is_overwritten = "mkldnn._convolution_pointwise_.binary" in calls.names
    assert is_overwritten is (use == "none")
