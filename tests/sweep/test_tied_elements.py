"""Places among equal elements: any choice that names the values is right, no other."""

from __future__ import annotations

import pytest
import torch

from tests.support.in_process_compiler import Counts, compile_here
from tests.support.judge import judge
from tests.sweep.one_sample import run_sample
from tests.sweep.records import Outcome
from tests.sweep.samples import Sample
from tests.sweep.tied_elements import with_chosen_gradients, with_chosen_places

ROWS = torch.tensor([[1, 5, 5, 5], [2, 2, 0, 1]])
EAGER = (torch.tensor([[5, 5], [2, 2]]), torch.tensor([[3, 2], [1, 0]]))


def _verdict(positions: list[list[int]], values: torch.Tensor = EAGER[0]) -> str:
    ours = with_chosen_places((values, torch.tensor(positions)), EAGER, ROWS)
    return judge(ours, EAGER, None).problem


@pytest.mark.parametrize("positions", [[[1, 2], [0, 1]], [[3, 2], [1, 0]], [[3, 1], [0, 1]]])
def test_any_of_equal_elements_may_be_named(positions: list[list[int]]) -> None:
    assert not _verdict(positions)


@pytest.mark.parametrize(
    "positions",
    [[[1, 1], [0, 1]], [[0, 1], [0, 1]], [[4, 1], [0, 1]], [[-1, 1], [0, 1]], [[1, 2], [0, 2]]],
    ids=["twice", "another element", "outside", "negative", "another value"],
)
def test_places_that_do_not_name_the_values_are_wrong(positions: list[list[int]]) -> None:
    assert "output 1" in _verdict(positions)


def test_right_places_do_not_excuse_wrong_values() -> None:
    assert "output 0" in _verdict([[1, 2], [2, 3]], torch.tensor([[5, 5], [0, 1]]))


def test_a_reduced_axis_is_found() -> None:
    eager = (torch.tensor([5, 2]), torch.tensor([3, 1]))
    assert not judge(
        with_chosen_places((eager[0], torch.tensor([1, 0])), eager, ROWS), eager, None
    ).problem
    assert judge(
        with_chosen_places((eager[0], torch.tensor([0, 0])), eager, ROWS), eager, None
    ).problem


def test_the_farm_s_choice_among_equal_elements_is_right() -> None:
    x = torch.tensor([[3.0, 7.0, 7.0, 7.0, 3.0, 7.0, 1.0, 7.0] * 4])
    sample = Sample(lambda t: torch.topk(t, 9, 1), (x,))
    found = run_sample("topk", sample, "forward", compile_here)
    assert found.outcome is Outcome.NATIVE, found.reason
    assert isinstance(found.counts, Counts)


def test_an_order_may_put_equal_elements_in_any_order() -> None:
    eager = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1]])
    other, wrong = (
        torch.tensor([[0, 3, 1, 2], [2, 3, 1, 0]]),
        torch.tensor([[1, 0, 2, 3], [2, 3, 0, 1]]),
    )
    assert not judge(with_chosen_places(other, eager, ROWS), eager, None).problem
    assert judge(with_chosen_places(wrong, eager, ROWS), eager, None).problem


def test_gradients_may_come_to_another_of_equal_elements_and_nowhere_else() -> None:
    x = torch.tensor([3.0, 5.0, 5.0, 1.0])
    positions, gradient = torch.tensor([1]), torch.tensor([0.0, 7.0, 0.0, 0.0])
    eager = ((torch.tensor([5.0]), positions), (gradient,))
    other = ((torch.tensor([5.0]), torch.tensor([2])), (torch.tensor([0.0, 0.0, 7.0, 0.0]),))
    wrong = ((torch.tensor([5.0]), torch.tensor([2])), (torch.tensor([7.0, 0.0, 0.0, 0.0]),))
    assert not judge(with_chosen_gradients(other, eager, x), eager, None).problem
    assert judge(with_chosen_gradients(wrong, eager, x), eager, None).problem
