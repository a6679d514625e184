"""One compiled model on several threads, compilation on several threads, and forked children."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from tests.support.farm import TIMEOUT_S
from tests.support.like_eager import assert_same, compiled, numbers
from tests.support.torch_children import run_python

THREADS = 4


def _on_threads(work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))  # raises what a thread raised


def test_one_model_called_from_four_threads_gives_right_results():
    layers = nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32)
    model = nn.Sequential(*layers).eval()
    fast = compiled(model)
    with torch.no_grad():
        fast(numbers(4, 32))

    def call_often(thread: int) -> None:
        with torch.no_grad():
            for turn in range(50):
                x = numbers(4, 32, seed=100 * thread + turn)
                assert_same(fast(x), model(x), rtol=1e-5)

    _on_threads(call_often)


def test_one_dynamic_model_called_with_other_sizes_on_each_thread_gives_right_results(sent):
    fast = compiled(lambda x: (x * 2).softmax(-1), dynamic=True)
    fast(numbers(3, 5))

    def call_often(thread: int) -> None:
        for turn in range(50):
            x = numbers(2 + thread + turn, 5 + thread, seed=turn)
            assert_same(fast(x), (x * 2).softmax(-1), rtol=1e-5)

    _on_threads(call_often)
    assert len(sent) == 1


def test_functions_compiled_on_four_threads_at_once_are_right():
    def compile_own(thread: int) -> None:
        def function(x):
            return (x * (thread + 2)).softmax(-1) + thread

        x = numbers(4, 5 + thread)
        assert_same(compiled(function)(x), function(x), rtol=1e-5)

    _on_threads(compile_own)


FORK = """
import os, sys, warnings
import torch
import numpy as np
fast = torch.compile(lambda x: (x * 3).softmax(-1), backend="kernelfarm", mode="strict")
large, other = torch.randn(600, 600), torch.randn(5, 9)
expected = [(x * 3).softmax(-1).numpy() for x in (large, other)]
np.testing.assert_allclose(fast(large).numpy(), expected[0], rtol=1e-5, atol=1e-7)
child = os.fork()
if child == 0:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        known = fast(large).numpy()
        new = fast(other).numpy()  # another shape: the child compiles
    np.testing.assert_allclose(known, expected[0], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(new, expected[1], rtol=1e-5, atol=1e-7)
    print(*(str(warning.message) for warning in said), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
np.testing.assert_allclose(fast(large).numpy(), expected[0], rtol=1e-5, atol=1e-7)
print("parent goes on")
"""


def test_a_forked_child_runs_and_compiles_with_a_warning_that_it_has_one_thread():
    done = run_python(("-c", FORK), timeout_s=2 * TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    reported, parent = done.stdout.splitlines()
    assert "run on one thread here" in reported
    assert parent == "parent goes on"
