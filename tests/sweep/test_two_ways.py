"""Both ways to trace a graph, with samples of the operator database: equal graphs, equal keys."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kernelfarm.dtypes import DType
from tests.support.two_ways import long_way, short_way
from tests.sweep.samples import DTYPES, Sample, Task, operators, samples, seed_all, tasks
from tests.sweep.settings import SEED_VARIABLE, slice_seed

PAIRS = 14
LEAST_SHARE = 0.5
"""Of the samples that AOT Autograd traces, the short way takes more; else it proves nothing."""


def outcome(sample: Sample, seed: int, **options: Any) -> str:
    """What became of a sample in both ways, in one word or with the reason.

    `options` are those of `torch.compile`.
    """
    seed_all(seed)
    constant_floats = torch._dynamo.config.patch(specialize_float=True)
    try:
        with torch.no_grad(), constant_floats, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            long = long_way(sample.function, *sample.tensors, **options)
            short = short_way(sample.function, *sample.tensors, **options)
    except Exception as error:
        return f"untraceable: {type(error).__name__}"
    if len(long) != len(short):
        return f"differs: {len(short)} graphs; expected {len(long)}"
    pairs = zip(short, long, strict=True)
    if any(ours.made is not None and ours != theirs for ours, theirs in pairs):
        return "differs"
    refusals = [ours.refusal for ours in short if ours.made is None]
    return f"long way: {refusals[0]}" if refusals else "equal"


def compare(
    chosen: Sequence[Task], seed: int, count: int, **options: Any
) -> tuple[Counter[str], list[str]]:
    """The outcomes by kind, and the samples that differ."""
    kinds: Counter[str] = Counter()
    different: list[str] = []
    known = operators()
    for task in chosen:
        try:
            found = samples(known[task.op], task, seed, count)
        except Exception:
            continue  # the database makes no sample
        for number, sample in enumerate(found):
            kind = outcome(sample, seed, **options)
            kinds[kind] += 1
            if kind.startswith("differs"):
                different.append(f"{task.op} {task.dtype} sample {number} {options}: {kind}")
    return kinds, different


def check(chosen: Sequence[Task], seed: int, count: int, **options: Any) -> None:
    kinds, different = compare(chosen, seed, count, **options)
    assert not different, "\n".join([f"{SEED_VARIABLE}={seed}", *different])
    traced = sum(n for kind, n in kinds.items() if not kind.startswith("untraceable"))
    assert kinds["equal"] > traced * LEAST_SHARE, kinds


def test_a_random_slice_has_equal_keys_in_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the samples have varying sizes, which compares the guards on them."""
    seed = slice_seed()
    with capsys.disabled():
        print(f" [both ways: {SEED_VARIABLE}={seed}]", end="")
    chosen = random.Random(seed).sample(list(tasks("forward")), PAIRS)
    check(chosen[::2], seed, 1)
    check(chosen[1::2], seed, 1, dynamic=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_operators_have_equal_keys_in_both_ways(dtype: DType) -> None:
    check(list(tasks("forward", (dtype,))), 0, 2)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_operators_have_equal_keys_and_guards_for_varying_sizes() -> None:
    check(list(tasks("forward", (DType.F32,))), 0, 1, dynamic=True)
