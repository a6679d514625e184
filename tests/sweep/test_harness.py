"""The sweep's own parts: it must see what is wrong, and lose nothing when a worker dies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.errors import InvalidGraphError
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.judge import judge
from tests.sweep.one_sample import run_sample
from tests.sweep.records import Outcome, Record, ResultFile, done_line
from tests.sweep.report import report
from tests.sweep.samples import Sample, Task, operators, samples


def test_a_result_that_is_off_by_a_few_units_is_right() -> None:
    model = torch.tensor([1.0, 1e-20, float("nan"), float("inf")])
    assert not judge(model * (1 + 2e-7), model, None).problem


@pytest.mark.parametrize(
    "wrong",
    [
        torch.tensor([1.0, 2.001]),
        torch.tensor([1.0, float("nan")]),
        torch.tensor([1.0, 2.0], dtype=torch.float64),
        torch.tensor([[1.0, 2.0]]),
        torch.tensor([1.0, 9.0, 2.0])[::2],
    ],
)
def test_a_wrong_value_type_shape_or_stride_is_seen(wrong: torch.Tensor) -> None:
    assert judge(wrong, torch.tensor([1.0, 2.0]), None).problem


def test_complex_numbers_are_judged_by_their_parts() -> None:
    model = torch.tensor([1 + 2j, 3 - 1e-20j])
    assert not judge(model * (1 + 2e-7), model, None).problem
    assert judge(model.conj().resolve_conj(), model, None).problem


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_wide_unsigned_integers_are_compared_exactly(dtype: torch.dtype) -> None:
    model = torch.tensor([1, 2**16 - 1]).to(dtype)
    assert not judge(model.clone(), model, None).problem
    assert judge(torch.tensor([1, 2**16 - 2]).to(dtype), model, None).problem


def test_integers_are_compared_exactly() -> None:
    assert judge(torch.tensor([2**60 + 1]), torch.tensor([2**60]), None).problem


def test_an_error_is_judged_by_what_float64_gives_next_to_eager_s_own() -> None:
    exact, eager = torch.tensor([1.0], dtype=torch.float64), torch.tensor([1.01])
    assert not judge(torch.tensor([0.985]), eager, exact).problem
    assert judge(torch.tensor([0.97]), eager, exact).problem


def test_a_wrong_kernel_makes_a_sample_wrong() -> None:
    def lie(captured: CapturedGraph, counts: Counts) -> Any:
        runner = compile_here(captured, counts)
        return lambda args: [result + 1 for result in runner(args)]

    sample = Sample(torch.exp, (torch.randn(5),))
    assert run_sample("exp", sample, "forward", compile_here).outcome is Outcome.NATIVE
    assert run_sample("exp", sample, "forward", lie).outcome is Outcome.WRONG


def test_a_float64_is_judged_by_what_rounding_its_inputs_does() -> None:
    """Of a difference of large numbers no algorithm can give more digits than they have."""

    def off_by(error: float) -> Any:
        def compile_graph(captured: CapturedGraph, counts: Counts) -> Any:
            runner = compile_here(captured, counts)
            return lambda args: [result + error for result in runner(args)]

        return compile_graph

    x = torch.tensor([1e6 + 0.1, -1e6], dtype=torch.float64)
    sample = Sample(torch.sum, (x,))
    assert run_sample("sum", sample, "forward", off_by(1e-10)).outcome is Outcome.NATIVE
    assert run_sample("sum", sample, "forward", off_by(1e-7)).outcome is Outcome.WRONG


def test_a_refusal_is_none_of_our_bugs() -> None:
    def refuse(captured: CapturedGraph, counts: Counts) -> Any:
        raise InvalidGraphError("no")

    def stumble(captured: CapturedGraph, counts: Counts) -> Any:
        raise KeyError("no")

    sample = Sample(torch.exp, (torch.randn(5),))
    assert run_sample("exp", sample, "forward", refuse).outcome is Outcome.REFUSED
    assert run_sample("exp", sample, "forward", stumble).outcome is Outcome.RAISES


def test_gradients_are_compared_as_well() -> None:
    seen: list[int] = []

    def count(captured: CapturedGraph, counts: Counts) -> Any:
        seen.append(len(captured.nodes))
        return compile_here(captured, counts)

    sample = Sample(torch.exp, (torch.randn(5, requires_grad=True),))
    assert run_sample("exp", sample, "backward", count).outcome is Outcome.NATIVE
    assert len(seen) == 2


def test_samples_depend_on_the_seed_alone() -> None:
    task = Task("add", "f32", "forward")
    info = operators()["add"]

    def drawn(seed: int) -> Sequence[torch.Tensor]:
        return [t for sample in samples(info, task, seed, 3) for t in sample.tensors]

    for left, right in zip(drawn(5), drawn(5), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)
    assert any(not torch.equal(a, b) for a, b in zip(drawn(5), drawn(6), strict=False))


def test_the_last_record_of_a_sample_counts(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "results.jsonl")
    task = Task("add", "f32", "forward")
    for outcome in (Outcome.WRONG, Outcome.NATIVE):
        file.append(Record("add", "f32", "forward", 0, 1, outcome).line())
    assert not file.done()
    file.append(done_line(task))
    assert file.done() == {task}
    (record,) = file.records()
    assert record.outcome is Outcome.NATIVE
    assert json.loads(record.line())["outcome"] == "native"


def test_the_report_names_what_is_wrong() -> None:
    records = [
        Record("add", "f32", "forward", 0, 1, Outcome.NATIVE, launches=1),
        Record("sub", "f32", "forward", 3, 1, Outcome.WRONG, "output 0: strides"),
    ]
    text = report(records)
    assert "`sub` f32, sample 3 of seed 1: wrong: output 0: strides" in text
    assert "Compile and are right: 1 (50.0% of the traceable)" in text


@pytest.mark.parametrize("is_training", [False, True])
def test_running_statistics_have_the_type_that_was_traced(is_training: bool) -> None:
    """The trace says f32 for what eager keeps in bf16."""

    def function(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> Any:
        args = (x, None, None, mean, variance, is_training, 0.1, 1e-5)
        return torch.ops.aten._native_batch_norm_legit_functional(*args)

    tensors = tuple(
        t.to(torch.bfloat16) for t in (torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3))
    )
    found = run_sample("batch_norm", Sample(function, tensors), "forward", compile_here)
    assert found.outcome is Outcome.NATIVE, found.reason
