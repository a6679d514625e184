"""A limit on the work that one request may cause, counted in steps and not in seconds.

Decoding, checks, decomposition, the algebra of indices and fusion call `spend` wherever work or
memory grows: one step is about one small object that is made or looked at. Equal requests therefore
end alike on a slow machine and on a fast one. Without a budget `spend` does nothing.

    with work_budget(DEFAULT_WORK_STEPS) as budget, phase("decode"):
        graph = graph_from_proto(message)
    print(budget.used)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kernelfarm.errors import WorkBudgetError

DEFAULT_WORK_STEPS = 10_500_000
"""Steps that one request may take in the frontend, and again in the optimizer.

A Llama of 32 layers (2,719 nodes) takes 376,000 in the one and 524,000 in the other.
"""


_CHARS_A_STEP = 16
"""Characters of text that cost as much as one small object."""


class WorkBudget:
    """The steps that a request has left, and the phase in which it is.

    Example:
        >>> with work_budget(10) as budget:
        ...     spend(3)
        >>> budget.used
        3
    """

    __slots__ = ("left", "limit", "phase")

    def __init__(self, limit_steps: int) -> None:
        self.limit = limit_steps
        self.left = limit_steps
        self.phase = "the request"

    @property
    def used(self) -> int:
        """Steps that were spent so far."""
        return self.limit - self.left

    def take(self, steps: int) -> None:
        """Counts steps.

        Raises:
            WorkBudgetError: more were taken than allowed.
        """
        self.left -= steps
        if self.left < 0:
            raise WorkBudgetError(
                f"{self.phase}: the work budget of {self.limit} steps is spent; a graph of this"
                " kind costs far more than real models do. Split it into smaller graphs, use fewer"
                " symbolic sizes or views of views, or ask the farm's operator for a larger budget"
            )


_current: ContextVar[WorkBudget | None] = ContextVar("work_budget", default=None)
_get = _current.get
_at_overrun: list[Callable[[], None]] = []


@contextmanager
def work_budget(limit_steps: int) -> Iterator[WorkBudget]:
    """Within it, `spend` counts against this limit; what it used then counts in an outer one.

    Raises:
        WorkBudgetError: from the `spend` that goes over the limit.
    """
    outer = _get()
    budget = WorkBudget(limit_steps)
    token = _current.set(budget)
    try:
        yield budget
    except WorkBudgetError:
        forget_memos()
        raise
    finally:
        _current.reset(token)
    if outer is not None:
        outer.take(budget.used)


def spend(steps: int = 1) -> None:
    """Counts steps against the request's budget, if there is one.

    Raises:
        WorkBudgetError: the budget is spent.
    """
    budget = _get()
    if budget is not None:
        budget.take(steps)


def steps_spent() -> int | None:
    """Steps that the request spent so far; None without a budget."""
    budget = _get()
    return None if budget is None else budget.used


def counted(text: str) -> str:
    """The same text, once its length is counted.

    Raises:
        WorkBudgetError: the budget is spent.
    """
    spend(1 + len(text) // _CHARS_A_STEP)
    return text


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Names the phase that an overrun tells of."""
    budget = _get()
    if budget is None:
        yield
        return
    outer, budget.phase = budget.phase, name
    yield
    # Not in `finally`: an overrun must tell the phase in which it happened.
    budget.phase = outer


def forget_at_overrun(forget: Callable[[], None]) -> None:
    """Registers what lets go of results that the process remembers between requests."""
    _at_overrun.append(forget)


def forget_memos() -> None:
    """Lets go of every remembered result: those of a hostile graph are large and of no use."""
    for forget in _at_overrun:
        forget()
