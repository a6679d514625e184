"""Models through `torch.compile` beside eager: `python -m tests.chaos.torch_load MODE SEED`.

Reads the farm's address from `KERNELFARM_ENDPOINT`. Each model has a constant of its own, so that
the farm compiles it anew; one in four has an earlier constant. If the farm does not serve a model
in time, the model runs eager, and the call counts as EAGER.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence

import torch

from kernelfarm.client import counters
from kernelfarm.errors import KernelfarmError
from tests.chaos.call_journal import Ending, Journal, judged

TIMEOUT_S = 15.0
MARGIN_S = 20.0
"""For tracing a model on a busy machine, which `timeout_s` does not bound."""

_PAUSE_S = 0.3
_RTOL, _ATOL = 1e-4, 1e-5
"""Sums of 64 numbers in another order differ by less, wrong kernels by much more."""

Model = Callable[..., torch.Tensor]

_MODELS = (
    ("pointwise", "torch.relu(a * {c}) + a.abs()"),
    ("reduction", "(a.sin() * {c}).sum(-1)"),
    ("softmax", "torch.softmax(a * {c}, -1)"),
    ("norm", "torch.nn.functional.layer_norm(a, a.shape[-1:]) * {c}"),
    ("cat", "torch.cat([a, a * {c}], 0).tanh()"),
)


def model_of(text: str, constant: float) -> Model:
    """A function with the constant in its code."""
    names: dict[str, Model] = {}
    exec(f"import torch\ndef model(a):\n    return {text.format(c=constant)}\n", names)
    return names["model"]


def run(mode: str, seed: int) -> None:
    """Compiles models and compares them with eager, without end."""
    journal, numbers, dice = Journal(), itertools.count(seed * 100_000), random.Random(seed)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # graphs that run eager are counted instead
    for _ in itertools.count():
        name, text = dice.choice(_MODELS)
        is_dynamic = dice.random() < 0.4
        number = dice.randrange(3) if dice.random() < 0.25 else next(numbers)
        model = model_of(text, 1.0 + (number % 1_000_000) * 2.0**-20)
        rows = [dice.randint(2, 40) for _ in range(3 if is_dynamic else 1)]
        kind = f"torch {mode}, {name}{', dynamic' if is_dynamic else ''}"
        with journal.call(kind, TIMEOUT_S * len(rows) + MARGIN_S) as ending:
            _try(ending, model, rows, mode)
        time.sleep(_PAUSE_S)


def _try(ending: Ending, model: Model, rows: Sequence[int], mode: str) -> None:
    """Runs the model compiled and eager, for each number of rows."""
    torch._dynamo.reset()
    before = _served()
    options: dict[str, bool | str | float] = {"timeout_s": TIMEOUT_S}
    options.update({"strict": True} if mode == "strict" else {"mode": mode})
    fast = torch.compile(model, backend="kernelfarm", dynamic=len(rows) > 1, options=options)  # type: ignore[arg-type]
    try:
        pairs = [(fast(given), model(given)) for given in map(_numbers, rows)]
    except KernelfarmError as error:
        ending.status, ending.detail = error.reason, str(error)
        return
    except torch._dynamo.exc.BackendCompilerFailed as error:
        ending.status, ending.detail = _reason(error), str(error)
        return
    ending.status = "OK" if _served() > before else "EAGER"
    is_right = all(
        torch.allclose(ours, theirs, rtol=_RTOL, atol=_ATOL, equal_nan=True)
        for ours, theirs in pairs
    )
    ending.verdict = judged(is_right=is_right)


def _numbers(rows: int) -> torch.Tensor:
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows))


def _served() -> int:
    """How many programs this process has received, from all tiers."""
    reported = counters.snapshot()
    names = ("farm.hits", "farm.misses", "farm.merged", "disk.hits", "memory.hits")
    return sum(reported.get(name, 0) for name in names)


def _reason(error: BaseException) -> str:
    """The reason of the `KernelfarmError` that caused an error of Dynamo."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KernelfarmError):
            return cause.reason
        cause = cause.__cause__ or getattr(cause, "inner_exception", None)
    raise error


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
