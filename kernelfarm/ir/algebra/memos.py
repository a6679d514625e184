"""Memoized results of operations on expressions, and when they are cleared.

Rewriting a graph repeats few distinct operations very often. Both the number of kept results and
their total size are bounded, because 65,536 expressions of 1,000 terms would take gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

from kernelfarm.ir.work_budget import clear_at_overrun

_P = ParamSpec("_P")
_T = TypeVar("_T")

MAX_NEW_TERMS = 1 << 21
"""Terms of new expressions, of about 200 bytes each, after which all results are cleared."""

_clear_callbacks: list[Callable[[], None]] = []
_new_terms = 0


def remembered(entries: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Memoizes a function: keeps its newest results until `MAX_NEW_TERMS` new terms were made."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        memo = lru_cache(maxsize=entries)(function)
        _clear_callbacks.append(memo.cache_clear)
        return memo  # type: ignore[return-value]  # typeshed drops the parameters

    return decorate


def count_new_terms(terms: int) -> None:
    """Clears all results if too many terms were made since; a count lost in a race is harmless."""
    global _new_terms  # noqa: PLW0603 (one counter for the process's memos)
    _new_terms += terms
    if _new_terms > MAX_NEW_TERMS:
        clear_results()


def clear_results() -> None:
    """Clears every result; later calls compute them again."""
    global _new_terms  # noqa: PLW0603
    _new_terms = 0
    for clear in _clear_callbacks:
        clear()


clear_at_overrun(clear_results)
