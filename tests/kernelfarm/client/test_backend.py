"""`torch.compile(model, backend="kernelfarm")` through a running farm."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from examples.real_inputs import ReferenceModel, g, h
from kernelfarm.client import torch_backend
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.programs.eager import KernelfarmWarning
from kernelfarm.errors import CallerError, UnavailableError
from tests.support.accuracy import assert_as_good_as_eager

NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there


def compiled(function, **options):
    return torch.compile(function, backend="kernelfarm", options={"strict": True, **options})


def test_the_backend_is_found_without_importing_kernelfarm(endpoint):
    script = (
        "import torch; x = torch.randn(8, 8);"
        "r = torch.compile(lambda x: (x * 2).sum(1), backend='kernelfarm', mode='strict')(x);"
        "torch.testing.assert_close(r, (x * 2).sum(1)); print('equal')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("equal\n", 0), done.stderr


def test_a_marked_dimension_serves_many_sizes_with_one_compile(endpoint, requests_made):
    model = ReferenceModel().eval()
    fast = compiled(model)
    with torch.no_grad():
        for rows in (8, 3, 32, 100):
            x = torch.randn(rows, 128)
            if rows == 8:
                torch._dynamo.mark_dynamic(x, 0)
            assert_as_good_as_eager(fast(x), model, x)
    assert len(requests_made) == 1


def test_equal_graphs_of_one_process_make_one_request(endpoint, requests_made):
    one, two = (lambda x: (x * 3).sin() + 7), (lambda y: (y * 3).sin() + 7)
    x = torch.randn(6, 4)
    for function in (one, two):
        torch.testing.assert_close(compiled(function)(x), function(x))
    assert len(requests_made) == 1


@pytest.fixture
def requests_made(monkeypatch):
    """Targets of the requests that this process makes, as it makes them."""
    made: list[list[str]] = []
    ask = FarmClient.compile

    def counted(self, graph, targets, **options):
        made.append(list(targets))
        return ask(self, graph, targets, **options)

    monkeypatch.setattr(FarmClient, "compile", counted)
    return made


def test_training_follows_eager(endpoint):
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    ours = copy.deepcopy(eager)
    fast = compiled(ours)
    steps = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, ours)]
    for _ in range(4):
        x, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))
        losses = []
        for model, step in zip((eager, fast), steps, strict=True):
            loss = nn.functional.cross_entropy(model(x), labels)
            step.zero_grad()
            loss.backward()
            step.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0])
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_inputs_that_the_model_writes_are_written(endpoint):
    def append(cache, x, position):
        cache[:, position] = x * 2
        return cache.sum(1)

    cache, other = torch.zeros(3, 5), torch.zeros(3, 5)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(append)(cache, x, 2), append(other, x, 2))
    torch.testing.assert_close(cache, other)


def test_views_of_inputs_come_back_as_views(endpoint):
    x = torch.randn(4, 6)
    rows, product = compiled(lambda x: (x[1:3].t(), x * 2))(x)
    assert rows.data_ptr() == x[1:3].data_ptr() and rows.stride() == (1, 6)
    torch.testing.assert_close(product, x * 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64])
def test_other_element_types_keep_eagers_type_and_strides(dtype, endpoint):
    x = (torch.randn(4, 6) * 10).to(dtype).t()

    def function(x):
        return (x + 1) * 2, x.sum(0), x > 0

    for mine, theirs in zip(compiled(function)(x), function(x), strict=True):
        assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
        torch.testing.assert_close(mine, theirs)


def test_an_index_out_of_bounds_is_an_index_error(endpoint):
    table, index = torch.randn(10, 3), torch.tensor([1, 42])
    with pytest.raises(IndexError):
        compiled(lambda t, i: t[i] * 2)(table, index)


def test_without_a_farm_models_run_eager_with_one_warning():
    fast = torch.compile(h, backend="kernelfarm", options={"endpoint": NOBODY})
    a, b = torch.randn(4, 6), torch.randn(4, 6)
    with pytest.warns(KernelfarmWarning, match=r"kernelfarm up.*strict") as said:
        torch.testing.assert_close(fast(a, b), h(a, b))
        torch.testing.assert_close(fast(a[:3], b[:3]), h(a[:3], b[:3]))
        other = torch.compile(g, backend="kernelfarm", options={"endpoint": NOBODY})
        torch.testing.assert_close(other(a, b), g(a, b))
    assert len(said) == 1
    assert NOBODY in str(said[0].message)


@pytest.mark.parametrize("how", [{"mode": "strict"}, {"options": {"strict": True}}])
def test_strict_makes_a_missing_farm_an_error(how, monkeypatch):
    monkeypatch.setenv("KERNELFARM_ENDPOINT", NOBODY)
    fast = torch.compile(h, backend="kernelfarm", **how)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        fast(torch.randn(4, 6), torch.randn(4, 6))
    assert isinstance(caught.value.inner_exception, UnavailableError)


def test_a_graph_without_a_form_on_the_wire_runs_eager_with_a_warning(endpoint):
    x = torch.tensor([0.0, 2.0, 3.0])
    fast = torch.compile(lambda x: torch.nonzero(x) * 2, backend="kernelfarm")
    sizes_of_data = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with sizes_of_data, pytest.warns(KernelfarmWarning, match="depends on data"):
        torch.testing.assert_close(fast(x), torch.nonzero(x) * 2)


def test_graphs_without_operators_run_without_a_farm():
    fast = compiled(lambda x: (x, 3), endpoint=NOBODY)
    x = torch.randn(3)
    assert fast(x)[0] is x


def test_options_that_do_not_exist_are_refused():
    fast = torch.compile(h, backend="kernelfarm", options={"stict": True})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        fast(torch.randn(4, 6), torch.randn(4, 6))
    assert isinstance(caught.value.inner_exception, CallerError)
    assert "stict" in str(caught.value.inner_exception)


def test_preloading_needs_no_farm(monkeypatch):
    monkeypatch.setenv("KERNELFARM_ENDPOINT", NOBODY)
    torch_backend.preload()
