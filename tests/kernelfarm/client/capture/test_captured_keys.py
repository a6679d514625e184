"""Keys of captured models: equal wherever a model is captured, and noticed where they change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from examples.model_zoo import model_of
from kernelfarm.client.capture.graph import capture
from kernelfarm.digest import program_key
from tests.support.traced_graphs import traced_one

GOLDEN = Path(__file__).parent / "golden_keys.json"
"""Program keys of models of the zoo, in f32, for `TARGET`: equal under torch 2.11 and 2.13.

If a change of ours is meant to change them, write what the failing test prints. If torch did, its
users' caches are cold after the upgrade: say so in the changelog."""

TARGET = "cuda:sm_90a"
QUICK = ("bert", "phi", "lstm")


def key_of(captured: Any) -> str:
    return program_key(captured.graph, TARGET, ()).hex()


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in json.loads(GOLDEN.read_text())
    ],
)
def test_a_models_key_is_the_one_that_other_machines_have(name: str) -> None:
    model = model_of(name, torch.float32)
    with torch.no_grad():
        captured = traced_one(model.model, *model.args)
    assert key_of(captured) == json.loads(GOLDEN.read_text())[name]


class _Block(nn.Module):
    """One layer whose names are up to its maker."""

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        self.names = names
        setattr(self, names[0], nn.Linear(8, 8))
        setattr(self, names[1], nn.LayerNorm(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (getattr(self, name) for name in self.names)
        return second(torch.relu(first(x)))


def test_names_of_modules_and_parameters_are_in_no_key() -> None:
    x = torch.randn(3, 8)
    with torch.no_grad():
        keys = {
            key_of(traced_one(_Block(names), x))
            for names in (("up", "norm"), ("rank_3_layer", "zz"), ("a", "b"))
        }
    assert len(keys) == 1


def test_files_lines_and_functions_of_the_users_code_are_in_no_key() -> None:
    source = "def {name}(x):\n    {gap}return (x + 1).softmax(0)\n"

    def written(path: str, name: str, gap: str) -> Callable[[torch.Tensor], torch.Tensor]:
        found: dict[str, Any] = {}
        exec(compile(source.format(name=name, gap=gap), path, "exec"), {}, found)  # our own text
        return found[name]

    x = torch.randn(4)
    here = traced_one(written("/home/a/model.py", "forward", ""), x)
    there = traced_one(written("/mnt/rank1/other.py", "step", "x = x\n    "), x)
    assert key_of(here) == key_of(there)


def traced_on(device: str) -> Any:
    """A graph with attributes, constants and indices that name their device, traced on none."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(4, device=x.device)
        mask = torch.full((4, 4), -torch.inf, device=x.device).triu(1)
        y = nn.functional.linear(x.to(torch.float32), weight) + mask + positions
        return torch.nn.functional.layer_norm(y, (4,)).to(device=x.device)

    with FakeTensorMode():
        args = torch.empty(4, 4, device=device), torch.empty(4, 4, device=device)
        return capture(make_fx(function, tracing_mode="fake")(*args))


def test_a_device_and_its_index_are_in_no_key() -> None:
    first, *others = (traced_on(device) for device in ("cpu", "cuda:0", "cuda:1", "cuda:7"))
    assert {key_of(other) for other in others} == {key_of(first)}
    assert [str(other.device) for other in others] == ["cuda:0", "cuda:1", "cuda:7"]
