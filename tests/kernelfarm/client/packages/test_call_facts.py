"""The question for a package: equal in all processes, and different for different calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from kernelfarm.client.packages.call_facts import Question
from kernelfarm.client.packages.code_facts import code_facts
from kernelfarm.client.packages.plain_values import NOT_PLAIN, text_of
from kernelfarm.client.traces.sizes import NotCoveredError
from tests.support.packaged_models import Chooses, Scaled, asked, scaled
from tests.support.torch_children import run_python

_SCRIPT = """
import torch
from tests.support.packaged_models import Chooses, asked
x = torch.zeros(2, 12)
print(asked(Chooses(), x).digest.hex(), asked(Chooses(), x).varying().digest.hex())
"""


def test_a_call_has_the_same_digests_under_every_hash_seed() -> None:
    outputs = set()
    for seed in ("1", "2"):
        done = run_python(("-c", _SCRIPT), {**os.environ, "PYTHONHASHSEED": seed}, timeout_s=120)
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    here = asked(Chooses(), torch.zeros(2, 12))
    assert outputs == {f"{here.digest.hex()} {here.varying().digest.hex()}\n"}


def test_weights_and_devices_by_index_have_no_part_in_it() -> None:
    x = torch.zeros(2, 12)
    assert asked(Scaled(1.0, seed=0), x).parts == asked(Scaled(1.0, seed=9), x + 1).parts


def model_with(**attributes: Any) -> nn.Module:
    model = Scaled(1.0)
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def with_hook() -> nn.Module:
    model = Scaled(1.0)
    model.first.register_forward_hook(lambda module, args, result: result)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
    model[1].weight = model[0].weight
    return model


LIMIT = 2.5


def helper(x: float) -> float:
    return min(x, LIMIT)


def with_helper(x: float) -> float:
    return helper(x) + 1.0


class Config:
    """An object that a model reads."""

    def __init__(self, act: object) -> None:
        self.act = act


X = torch.zeros(2, 12)
PAIRS: Mapping[str, tuple[Callable[[], Question], Callable[[], Question], str]] = {
    "attribute": (lambda: asked(model_with(), X), lambda: asked(model_with(a=1), X), "modules"),
    "function": (
        lambda: asked(model_with(act=torch.relu), X),
        lambda: asked(model_with(act=torch.tanh), X),
        "modules",
    ),
    "operator": (
        lambda: asked(model_with(act=torch.ops.aten.relu), X),
        lambda: asked(model_with(act=torch.ops.aten.tanh), X),
        "modules",
    ),
    "own function": (
        lambda: asked(model_with(_act=helper), X),
        lambda: asked(model_with(_act=with_helper), X),
        "modules code",
    ),
    "object": (
        lambda: asked(model_with(config=Config(act=torch.relu)), X),
        lambda: asked(model_with(config=Config(act=torch.tanh)), X),
        "modules",
    ),
    "nested": (
        lambda: asked(model_with(acts=[partial(torch.clamp, min=0.0)]), X),
        lambda: asked(model_with(acts=[partial(torch.clamp, min=1.0)]), X),
        "modules",
    ),
    "training": (lambda: asked(Scaled(1.0), X), lambda: asked(Scaled(1.0).eval(), X), "modules"),
    "type": (lambda: asked(Scaled(1.0), X), lambda: asked(Scaled(1.0).double(), X), "modules"),
    "tied weights": (
        lambda: asked(tied(), X),
        lambda: asked(nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12)), X),
        "modules inputs",  # inputs state which memory they share with parameters, by number
    ),
    "size": (lambda: asked(scaled, X, 1.0), lambda: asked(scaled, X[:1], 1.0), "inputs"),
    "strides": (
        lambda: asked(scaled, X.t(), 1.0),
        lambda: asked(scaled, X.t().contiguous(), 1.0),
        "inputs",
    ),
    "value": (lambda: asked(scaled, X, 1.0), lambda: asked(scaled, X, 2.0), "inputs"),
    "kind of number": (lambda: asked(scaled, X, 1.0), lambda: asked(scaled, X, 1), "inputs"),
    "keyword": (lambda: asked(scaled, X, 1.0), lambda: asked(scaled, X, number=1.0), "inputs"),
    "options": (
        lambda: asked(scaled, X, 1.0),
        lambda: asked(scaled, X, 1.0, deterministic=True),
        "options",
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_calls_that_differ_have_other_digests(what: str) -> None:
    first, second, parts = PAIRS[what]
    one, other = first(), second()
    differing = {name for name in one.parts if one.parts[name] != other.parts.get(name)}
    assert differing == set(parts.split())
    assert one.digest != other.digest


def test_a_question_for_varying_sizes_has_no_size() -> None:
    few, many = asked(scaled, X, 1.0).varying(), asked(scaled, torch.zeros(9, 3), 1.0).varying()
    assert few.digest == many.digest
    assert few.digest != asked(scaled, X[0], 1.0).varying().digest  # another number of axes
    assert few.digest != asked(scaled, X, 1.0).digest


def test_the_gradient_mode_is_a_part() -> None:
    with torch.no_grad():
        without = asked(scaled, X, 1.0)
    assert without.parts["grad"] != asked(scaled, X, 1.0).parts["grad"]


@pytest.mark.parametrize(
    ("call", "args", "reason"),
    [
        (torch.sin, (X,), "neither a module nor a function"),
        (scaled, (X, object()), "input object"),
        (with_hook(), (X,), "hooks"),
        (scaled, (nn.Buffer(X).to_sparse(), 1.0), "a tensor of another layout"),
        (scaled, (torch.zeros(3, device="meta"), 1.0), "device meta"),
    ],
)
def test_what_no_package_can_have_says_why(
    call: Callable[..., Any], args: tuple[Any, ...], reason: str
) -> None:
    with pytest.raises(NotCoveredError, match=reason):
        asked(call, *args)


def test_code_names_what_it_uses_and_hides_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{__name__}:helper"
    before = code_facts([with_helper], ())
    assert before[f"value {__name__}:LIMIT"] == "float 2.5"
    assert f"code {name}" in before
    monkeypatch.setitem(globals(), "LIMIT", "a secret")
    after = code_facts([with_helper], ())
    assert {key for key in before if before[key] != after[key]} == {f"value {__name__}:LIMIT"}
    assert "secret" not in str(after)


def test_only_plain_values_have_a_text() -> None:
    assert (
        text_of((1, None, [2.0, True])) == "tuple(int 1, NoneType None, list(float 2.0, bool True))"
    )
    assert text_of({"a": torch.float32}).startswith("dict(str ")
    for value in (object(), (1, object()), {"a": print}, type("Number", (int,), {})(3)):
        assert text_of(value) == NOT_PLAIN
