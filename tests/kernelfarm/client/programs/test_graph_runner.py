"""Programs that come later, go, and come again while a model is called."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs.eager import KernelfarmWarning
from kernelfarm.client.programs.graph_runner import GraphRunner
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.errors import DeadlineError, FarmFullError, InvalidGraphError
from tests.support.client_process import new_process
from tests.support.farm import TIMEOUT_S, Farm, wait_until
from tests.support.tampering_proxy import TamperingFarm
from tests.support.traced_graphs import traced_one

X = torch.randn(6, 5)
_numbers = iter(range(1000))


@pytest.fixture
def meddler(farm: Farm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TamperingFarm]:
    """A farm in between, with a disk tier of its own."""
    meddling = TamperingFarm(farm.endpoint)
    monkeypatch.setenv("KERNELFARM_DISK_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERNELFARM_ENDPOINT", meddling.start())
    counters.reset()
    yield meddling
    meddling.may_answer.set()
    meddling.stop()


def new_model() -> Callable[[torch.Tensor], torch.Tensor]:
    number = next(_numbers) + 0.375
    return lambda a: (a * number).cos().sum(1)


def compiled(function, mode: str, **options) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(function, backend="kernelfarm", options={"mode": mode, **options})


def count_of(name: str) -> int:
    return counters.snapshot().get(name, 0)


def test_swap_runs_eager_until_the_farm_answers_and_then_the_program(meddler) -> None:
    model = new_model()
    fast = compiled(model, "swap")
    meddler.may_answer.clear()
    for _ in range(3):
        assert torch.equal(fast(X), model(X))
    assert (count_of("runner.eager_calls"), count_of("runner.programs_replaced")) == (3, 0)
    meddler.may_answer.set()
    wait_until(lambda: count_of("runner.programs_replaced") == 1, TIMEOUT_S, "the program")
    torch.testing.assert_close(fast(X), model(X))
    assert (count_of("runner.eager_calls"), meddler.requests) == (3, 1)


def test_no_call_of_any_thread_is_lost_or_repeated_while_the_program_takes_over(meddler) -> None:
    meddler.may_answer.clear()
    number = next(_numbers) + 0.25

    def model(total: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        total += 1  # what is done twice, or not at all, shows
        return (a * number).sin() + total

    fast = compiled(model, "swap")
    totals = [torch.zeros(()) for _ in range(4)]
    fast(torch.zeros(()), X)
    is_enough = threading.Event()

    calls = [0] * len(totals)

    def call_often(thread: int) -> None:
        while not is_enough.is_set():
            result = fast(totals[thread], X)
            calls[thread] += 1
            torch.testing.assert_close(result, (X * number).sin() + calls[thread])

    with ThreadPoolExecutor(len(totals)) as pool:
        running = [pool.submit(call_often, thread) for thread in range(len(totals))]
        wait_until(lambda: count_of("runner.eager_calls") > 20, TIMEOUT_S, "eager calls")
        meddler.may_answer.set()
        wait_until(lambda: count_of("runner.programs_replaced") == 1, TIMEOUT_S, "the program")
        taken_over = sum(calls)
        wait_until(lambda: sum(calls) > taken_over + 20, TIMEOUT_S, "calls of the program itself")
        is_enough.set()
        for done in running:
            done.result()
    assert [int(total) for total in totals] == calls
    assert sum(calls) > count_of("runner.eager_calls")


def test_swap_trains_like_eager_while_forward_and_backward_take_over(meddler) -> None:
    meddler.may_answer.clear()
    model = new_model()
    fast = compiled(model, "swap")
    for step in range(6):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        fast(x).square().sum().backward()
        model(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        if step == 2:
            meddler.may_answer.set()
            wait_until(
                lambda: count_of("runner.programs_replaced") == 2, TIMEOUT_S, "both programs"
            )


def test_a_failure_while_swapping_is_one_warning(meddler) -> None:
    meddler.refusals = [InvalidGraphError("no such thing")]
    model = new_model()
    fast = compiled(model, "swap")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert torch.equal(fast(X), model(X))
        wait_until(lambda: not meddler.refusals, TIMEOUT_S, "the refusal")
        wait_until(lambda: bool(fast(X) is None or said), TIMEOUT_S, "the warning")
        for _ in range(3):
            assert torch.equal(fast(X), model(X))
    assert [w.category for w in said] == [KernelfarmWarning]
    assert "no such thing" in str(said[0].message)
    assert meddler.requests == 1  # what the farm refuses is not asked again


def test_equal_graphs_share_one_request_while_it_is_under_way(
    meddler, tmp_path, monkeypatch
) -> None:
    number = next(_numbers) + 0.5
    graphs = [traced_one(lambda a: (a * number).tanh(), X) for _ in range(6)]
    process = new_process(f"127.0.0.1:{meddler._port}", tmp_path)
    meddler.may_answer.clear()
    with ThreadPoolExecutor(6) as pool:
        found = [pool.submit(process.program, graph) for graph in graphs]
        wait_until(lambda: meddler.requests == 1, TIMEOUT_S, "the request")
        meddler.may_answer.set()
        programs = {id(done.result()) for done in found}
    assert (len(programs), meddler.requests) == (1, 1)


@pytest.fixture
def admin(farm: Farm) -> Iterator[CacheAdmin]:
    with CacheAdmin(farm.endpoint) as opened:
        yield opened


@pytest.mark.parametrize("mode", ["wait", "swap", "strict"])
def test_an_invalidated_program_is_replaced_at_the_next_call(mode, meddler, admin) -> None:
    model, name = new_model(), f"running@{next(_numbers)}"
    fast = compiled(model, mode, model=name)
    fast(X)
    wait_until(lambda: fast(X) is not None and not is_eager(fast), TIMEOUT_S, "the first program")
    asked = meddler.requests
    admin.invalidate([f"model:{name}"])
    wait_until(lambda: count_of("memory.stale") == 1, TIMEOUT_S, "word of the invalidation")
    meddler.may_answer.set()
    torch.testing.assert_close(fast(X), model(X))
    wait_until(lambda: meddler.requests == asked + 1, TIMEOUT_S, "the next program")
    wait_until(lambda: fast(X) is not None and not is_eager(fast), TIMEOUT_S, "its first call")


def is_eager(fast) -> bool:
    before = count_of("runner.eager_calls")
    fast(X)
    return count_of("runner.eager_calls") > before


def test_without_a_farm_an_invalidated_program_makes_way_for_eager(meddler, admin) -> None:
    models = {mode: new_model() for mode in ("wait", "strict")}
    name = f"orphan@{next(_numbers)}"
    fast = {mode: compiled(model, mode, model=name) for mode, model in models.items()}
    for function in fast.values():
        function(X)
    admin.invalidate([f"model:{name}"])
    wait_until(lambda: count_of("memory.stale") >= 2, TIMEOUT_S, "word of the invalidation")
    meddler.refusals = [DeadlineError("gone")] * 2
    with pytest.warns(KernelfarmWarning, match="gone"):
        assert torch.equal(fast["wait"](X), models["wait"](X))
    assert torch.equal(fast["wait"](X), models["wait"](X))
    with pytest.raises(DeadlineError, match="gone"):
        fast["strict"](X)
    torch.testing.assert_close(fast["strict"](X), models["strict"](X))


def full(retry_after_s: float) -> FarmFullError:
    error = FarmFullError("come back")
    error.retry_after_s = retry_after_s
    return error


def test_a_full_farm_is_asked_again_no_sooner_than_it_says(meddler) -> None:
    meddler.refusals = [full(0.6), full(0.3)]
    model, numbers = new_model(), random.getstate()
    torch.testing.assert_close(compiled(model, "strict")(X), model(X))
    assert random.getstate() == numbers, "the user's own numbers were drawn"
    first, second, third = meddler.asked
    assert second - first >= 0.6 and third - second >= 0.3


def test_a_full_farm_is_not_asked_again_past_the_timeout(meddler) -> None:
    meddler.refusals = [full(36_000.0)]
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(new_model(), "strict", timeout_s=3600.0)(X)
    assert isinstance(caught.value.inner_exception, FarmFullError)
    assert meddler.requests == 1


def test_another_program_replaces_the_present_one_but_none_that_is_being_fetched(
    farm: Farm, tmp_path: Path
) -> None:
    process = new_process(farm.endpoint, tmp_path)
    model = new_model()
    captured = traced_one(model, X)

    def program() -> PlanRunner:
        loader = device_support(captured.device).loader
        return PlanRunner(process.program(captured).for_graph(captured, loader))

    is_fetching, may_go_on = threading.Event(), threading.Event()

    def find() -> PlanRunner:
        is_fetching.set()
        assert may_go_on.wait(TIMEOUT_S)
        return program()

    runner = GraphRunner(lambda args: [model(*args)], find, process.access.settings)
    other = program()
    assert not runner.replace(other)
    runner.fetch_in_background()
    assert is_fetching.wait(TIMEOUT_S) and not runner.replace(other)
    may_go_on.set()
    wait_until(lambda: count_of("runner.programs_replaced") == 1, TIMEOUT_S, "the program")
    wait_until(lambda: runner.replace(other), TIMEOUT_S, "the other program")
    (result,) = runner.boxed()([X])
    torch.testing.assert_close(result, model(X))
    assert count_of("runner.programs_replaced") == 2
