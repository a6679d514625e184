"""Programs whose results do not depend on scheduling, through a running farm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import kernelfarm
from kernelfarm.client.programs.eager import KernelfarmWarning
from tests.support.like_eager import numbers

pytestmark = pytest.mark.usefixtures("flag_off_again", "prompt_repetitions")

NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there
ON, OFF, WARNING = (True, False), (False, False), (True, True)


class Witness:
    """An operator of the user, which notes PyTorch's flag whenever it runs, and may fail."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, bool]] = []
        self.fails = False
        self._library = torch.library.Library("kernelfarm_determinism", "FRAGMENT")
        self._library.define("witness(Tensor x) -> Tensor")
        self._library.impl("witness", self._run, "CPU")
        self._library.impl("witness", torch.empty_like, "Meta")

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(flag())
        if self.fails:
            raise OverflowError("as asked")
        return x + 1

    def model(self, x: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        added = x.index_add(0, at, rows) * 2
        return torch.ops.kernelfarm_determinism.witness(added).sin()

    def end(self) -> None:
        self._library._destroy()


@pytest.fixture
def witness() -> Iterator[Witness]:
    made = Witness()
    yield made
    made.end()


def flag() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def arguments() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return numbers(6, 4), torch.tensor([1, 4, 1]), numbers(3, 4, seed=1)


def compiled(witness: Witness, **options):
    return torch.compile(witness.model, backend="kernelfarm", options=options)


def test_the_framework_runs_its_operators_with_deterministic_kernels(endpoint, witness):
    fast, args = compiled(witness, strict=True, deterministic=True), arguments()
    expected = witness.model(*args)
    witness.seen.clear()
    torch.testing.assert_close(fast(*args), expected)
    assert (witness.seen, flag()) == ([ON], OFF)
    witness.fails = True
    with pytest.raises(OverflowError):
        fast(*args)
    assert flag() == OFF


def test_the_flag_selects_programs_and_a_stated_option_wins(endpoint, witness, requests_made):
    args = arguments()
    torch.use_deterministic_algorithms(True, warn_only=True)
    for options in ({}, {"deterministic": False}):
        torch._dynamo.reset()
        stated = {"strict": True, **options}
        torch.compile(lambda *a: witness.model(*a) * 3, backend="kernelfarm", options=stated)(*args)
        assert witness.seen.pop() == WARNING
    assert len(requests_made) == 2  # one program is not served for the other


def test_without_a_farm_eager_runs_with_deterministic_kernels(witness):
    fast = compiled(witness, endpoint=NOBODY, deterministic=True)
    with pytest.warns(KernelfarmWarning):
        fast(*arguments())
    assert (witness.seen, flag()) == ([ON], OFF)


def test_exported_models_follow_the_flag_too(endpoint, witness):
    args = arguments()
    torch.use_deterministic_algorithms(True)
    program = kernelfarm.compile(witness.model, args)
    torch.use_deterministic_algorithms(False)
    program(*args)
    assert (witness.seen.pop(), flag()) == (ON, OFF)
