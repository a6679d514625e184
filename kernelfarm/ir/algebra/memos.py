"""Remembered results of operations on expressions, and when they are forgotten.

Rewriting a graph repeats few distinct operations very often. The number of results that are held
is bounded, and so is what they hold: 65,536 expressions of 1,000 terms would take gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

from kernelfarm.ir.work_budget import clear_at_overrun

_P = ParamSpec("_P")
_T = TypeVar("_T")

MAX_NEW_TERMS = 1 << 21
"""Terms of new expressions after which all results are forgotten; some 200 bytes each."""

_clear_callbacks: list[Callable[[], None]] = []
_new_terms = 0


def remembered(entries: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Remembers a function's results, by number the newest and by weight those of a while."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        memo = lru_cache(maxsize=entries)(function)
        _clear_callbacks.append(memo.cache_clear)
        return memo  # type: ignore[return-value]  # typeshed drops the parameters

    return decorate


def count_new_terms(terms: int) -> None:
    """Forgets all results if too much was made since; a lost count of a race does no harm."""
    global _new_terms  # noqa: PLW0603 (one counter for the process's memos)
    _new_terms += terms
    if _new_terms > MAX_NEW_TERMS:
        clear_results()


def clear_results() -> None:
    """Lets go of every result; what is asked for next is computed anew."""
    global _new_terms  # noqa: PLW0603
    _new_terms = 0
    for forget in _clear_callbacks:
        forget()


clear_at_overrun(clear_results)
