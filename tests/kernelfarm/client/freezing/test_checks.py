"""Models that cannot be frozen, and models that the farm compiles frozen."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import kernelfarm
from kernelfarm.client import counters
from kernelfarm.client.freezing.constants import FrozenWarning
from kernelfarm.client.programs.eager import KernelfarmWarning
from kernelfarm.client.pytorch.private.packages import aot_compiled
from kernelfarm.errors import CallerError


def compiled(model: Any, **options: Any) -> Any:
    stated = {"strict": True, "freezing": True, **options}
    return torch.compile(model, backend="kernelfarm", options=stated)


def refusal(function: Any, *args: Any) -> str:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        function(*args)
    assert isinstance(caught.value.inner_exception, CallerError)
    return str(caught.value.inner_exception)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.Dropout(0.5)])
def test_a_model_in_training_mode_is_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer).train()
    with torch.no_grad():
        assert "model.eval()" in refusal(compiled(model), torch.randn(2, 4))


def test_a_model_that_needs_gradients_is_refused() -> None:
    assert "torch.no_grad()" in refusal(compiled(nn.Linear(4, 4)), torch.randn(2, 4))


def test_a_package_of_a_frozen_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFARM_PACKAGES", "trusted")
    with pytest.raises(CallerError, match="freezing: a package"):
        kernelfarm.packaged(nn.Linear(4, 4), options={"freezing": True})
    call = torch.compile(
        nn.Linear(4, 4), backend="kernelfarm", options={"freezing": True}, fullgraph=True
    )
    with torch.no_grad(), pytest.raises(Exception, match="freezing: a package cannot hold"):
        aot_compiled(call, (torch.randn(2, 4),), {})


def test_the_option_is_true_or_false(endpoint: str) -> None:
    assert "expected True or False" in refusal(
        compiled(nn.Linear(4, 4), freezing="yes"), torch.randn(2, 4)
    )


class Decoder(nn.Module):
    """A layer that writes what it saw into a buffer, as models write caches of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 96), nn.Linear(96, 64)
        self.register_buffer("seen", torch.zeros(4, 3, 96))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.seen.index_copy_(0, position, self.inner(x).relu()[None])
        return self.outer(self.seen.sum(0))


def test_a_model_that_writes_a_cache_is_frozen_without_the_cache(endpoint: str) -> None:
    model = Decoder().eval()
    fast, folded = compiled(copy.deepcopy(model)), counters.snapshot().get("frozen.folded", 0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FrozenWarning)
        for position in range(4):
            args = (torch.randn(3, 64), torch.tensor([position]))
            torch.testing.assert_close(fast(*args), model(*args))
    assert counters.snapshot()["frozen.folded"] == folded + 1


def test_parameters_of_a_model_with_a_cache_may_change_all_the_same(endpoint: str) -> None:
    model = Decoder().eval()
    fast, args = compiled(model), (torch.randn(3, 64), torch.tensor([0]))
    with torch.no_grad():
        fast(*args)
        model.outer.weight.mul_(2)
        with pytest.warns(FrozenWarning, match="have changed"):
            ours = fast(*args)
        torch.testing.assert_close(ours, model(*args))


def test_a_graph_that_is_not_frozen_runs_with_a_warning(endpoint: str) -> None:
    """Views that share memory, one of which is written, are one argument of the traced graph."""

    def write(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return x @ weight

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 96))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return write(x, y, self.weight)

    model, memory = Writing().eval(), torch.randn(6, 64)
    fast = compiled(model)
    with torch.no_grad(), pytest.warns(FrozenWarning, match="share memory"):
        ours = fast(memory[:4], memory[2:])
        memory[2:].sub_(1)
        torch.testing.assert_close(ours, model(memory[:4], memory[2:]))


def test_the_farm_compiles_a_frozen_model_and_other_weights_use_its_program(
    endpoint: str, requests_made: list[Any]
) -> None:
    counters.reset()
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch._dynamo.reset()
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 40)
        ).eval()
        x = torch.randn(2, 3, 8, 8)
        with torch.no_grad():
            found = compiled(model)(x)
            exact = copy.deepcopy(model).double()(x.double())
        assert (found - exact).abs().max() < 1e-6 * exact.abs().max() * 4
    assert counters.snapshot()["frozen.folded"] == 2
    assert len(requests_made) == 1


def test_an_exported_model_is_frozen(endpoint: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Hardswish()).eval()
    x = torch.randn(2, 3, 8, 8)
    frozen = kernelfarm.compile(model, (x,), is_frozen=True)
    assert next(node.op for node in frozen.graph.nodes) == "mkldnn._convolution_pointwise.default"
    torch.testing.assert_close(frozen(x), model(x))
    with pytest.raises(CallerError, match="expected processors"):
        kernelfarm.compile(model, (x,), targets=["ascend:910b"], is_frozen=True)


def test_a_frozen_program_takes_batches_of_any_size(endpoint: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 40)).eval()
    fast = torch.compile(
        model, backend="kernelfarm", dynamic=True, options={"strict": True, "freezing": True}
    )
    counters.reset()
    with torch.no_grad():
        for batch in (2, 3, 5):
            x = torch.randn(batch, 3, 8, 8)
            torch.testing.assert_close(fast(x), model(x))
    assert counters.snapshot()["traced.short"] == 1


@pytest.mark.usefixtures("prompt_repetitions")
def test_without_a_farm_a_frozen_model_runs_eager() -> None:
    model, x = nn.Linear(80, 90), torch.randn(3, 80)
    fast = compiled(model, endpoint="127.0.0.1:9", strict=False)
    with torch.no_grad(), pytest.warns(KernelfarmWarning):
        torch.testing.assert_close(fast(x), model(x))
