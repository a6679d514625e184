"""`torch.compile(model, backend="kernelfarm")` through a running farm."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch

from examples.real_inputs import g, h
from kernelfarm.client import counters, torch_backend
from kernelfarm.client.programs.eager import KernelfarmWarning
from kernelfarm.errors import CallerError, UnavailableError

pytestmark = pytest.mark.usefixtures("prompt_repetitions")

NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there


def compiled(function, *, dynamic=None, **options):
    stated = {"strict": True, **options}
    return torch.compile(function, backend="kernelfarm", dynamic=dynamic, options=stated)


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


def test_equal_graphs_of_one_process_make_one_request(endpoint, requests_made):
    one, two = (lambda x: (x * 3).sin() + 7), (lambda y: (y * 3).sin() + 7)
    x = torch.randn(6, 4)
    for function in (one, two):
        torch.testing.assert_close(compiled(function)(x), function(x))
    assert len(requests_made) == 1


def test_counters_and_debug_logs_state_how_each_graph_was_traced(endpoint, caplog):
    def writing(x):
        x.mul_(2)
        return x.cos() + 1

    reason = "an input that is written"
    counters.reset()
    x = torch.randn(6, 4)
    torch.testing.assert_close(compiled(h)(x, x + 1), h(x, x + 1))
    assert counters.snapshot()["traced.short"] == 1
    ours, theirs = x.clone(), x.clone()
    with caplog.at_level("DEBUG", logger="kernelfarm.client"):
        torch.testing.assert_close(compiled(writing)(ours), writing(theirs))
    torch.testing.assert_close(ours, theirs)
    found = counters.snapshot()
    assert (found["traced.short"], found[f"traced.long.{reason}"]) == (1, 1)
    assert any(reason in record.getMessage() for record in caplog.records)


def test_floats_that_vary_and_those_that_cannot_need_no_second_run(endpoint, requests_made):
    def scaled(x, factor, scale):
        attended = torch.nn.functional.scaled_dot_product_attention(x, x, x, scale=scale)
        return attended * (2 * factor + 1) + factor

    counters.reset()
    x = torch.randn(2, 3, 6, 4)
    fast = compiled(scaled, dynamic=True)
    for factor, length in ((0.37, 6), (-1.25, 6), (2.5, 5)):
        args = (x[:, :, :length].contiguous(), factor, 0.5)
        torch.testing.assert_close(fast(*args), scaled(*args))
    found = counters.snapshot()
    assert found["traced.short"] == len(requests_made) == 1
    assert not any(name.startswith("traced.long") for name in found)


def test_no_garbage_is_collected_while_a_graph_is_traced(endpoint):
    collected = []

    def note(_phase, _info):
        frame, names = sys._getframe(), set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        collected.append(bool(names & {"short_trace", "capture"}))

    before, x = gc.get_threshold(), torch.randn(6, 4)
    gc.callbacks.append(note)
    try:
        gc.set_threshold(1)
        torch.testing.assert_close(compiled(lambda x: x.sinh() + 3)(x), x.sinh() + 3)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert collected
    assert not any(collected)
    assert gc.isenabled()


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
