"""A model that runs eager until the farm's program has arrived.

The mode `swap` of the client lets calls run eager while the farm compiles. Dynamo's first look at a
model takes seconds and holds a lock, so it happens in a thread of its own here, on a batch that
looks like every other one. Requests go to the compiled model once a call of it was not eager.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from kernelfarm.client import counters

_POLL_S = 0.05
EAGER, COMPILED = "eager", "compiled"
Run = Callable[..., torch.Tensor]


class SwappingModel:
    """Runs `model` on batches of one shape; several threads may call it."""

    def __init__(self, model: Run, example: tuple[torch.Tensor, ...]) -> None:
        self._eager = model
        self._compiled = torch.compile(
            model, backend="kernelfarm", options={"mode": "swap"}, dynamic=False
        )
        self._example = example
        # One pair, read once by each call: a call never mixes the two.
        self._current: tuple[str, Run] = (EAGER, model)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._swap, name="compile", daemon=True)

    @property
    def state(self) -> str:
        """`eager`, or `compiled` once the farm's program runs."""
        return self._current[0]

    def start(self) -> None:
        """Begins to compile in the background."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; returns when it has ended, or after a few seconds if it is tracing."""
        self._is_closed.set()
        self._thread.join(5.0)

    def __call__(self, *batch: torch.Tensor) -> tuple[torch.Tensor, str]:
        """The result for a batch, and what computed it."""
        state, run = self._current
        with torch.inference_mode():
            return run(*batch), state

    def _swap(self) -> None:
        """Calls the compiled model until the farm's program answers; then requests use it."""
        while not self._is_closed.is_set():
            before = _eager_calls()
            with torch.inference_mode():
                self._compiled(*self._example)
            if _eager_calls() == before and _programs() > 0:
                self._current = (COMPILED, self._compiled)
                return
            self._is_closed.wait(_POLL_S)


def _eager_calls() -> int:
    return counters.snapshot().get("runner.eager_calls", 0)


def _programs() -> int:
    return counters.snapshot().get("runner.programs_replaced", 0)
