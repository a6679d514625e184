"""Hints in comments: what is read, what is refused, and what is no hint."""

from __future__ import annotations

import pytest

from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton.check_source import check_source
from kernelfarm.ir.triton.hints import MAX_HINTS, Hint, hints_of


def _source(comment: str) -> str:
    return f"def kernel(x_ptr):\n    tl.store(x_ptr, 1)  {comment}\n"


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# @hint: async", [Hint("async", None, 2)]),
        ("#@hint:async=3,shared_memory", [Hint("async", 3, 2), Hint("shared_memory", None, 2)]),
        ("# a comment about @hint: async", []),
        ("# @hints: async", []),
    ],
)
def test_a_comment_is_read_as_hints(comment: str, expected: list[Hint]) -> None:
    assert list(hints_of(_source(comment))) == expected


def test_text_in_quotes_is_no_hint() -> None:
    assert hints_of('def kernel(x):\n    y: tl.constexpr = "# @hint: async"\n    return y\n') == ()


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# @hint:", "hint ''; expected NAME or NAME=NUMBER"),
        ("# @hint: a b", "line 2: hint 'a b'"),
        ("# @hint: a=b", "hint 'a=b'"),
        ("# @hint: a=-1", "hint 'a=-1'"),
        ("# @hint: a=99999", "hint 'a=99999'"),
        (f"# @hint: {'a' * 33}", "expected NAME or NAME=NUMBER"),
        (f"# @hint: {'a' * 3000}", "expected NAME or NAME=NUMBER"),
        ("# @hint: __import__('os')", "expected NAME or NAME=NUMBER"),
        (f"# @hint: {','.join(['a'] * (MAX_HINTS + 1))}", f"more than {MAX_HINTS} hints"),
        (f"# @hint: {','.join(['a'] * 1500)}", "expected NAME or NAME=NUMBER"),
    ],
)
def test_a_source_with_another_form_of_hint_is_refused(comment: str, message: str) -> None:
    with pytest.raises(UserKernelError) as caught:
        check_source(_source(comment))

    assert message in str(caught.value)


def test_thousands_of_comments_with_hints_are_refused() -> None:
    lines = ["    tl.store(x_ptr, 1)  # @hint: async"] * 2000
    with pytest.raises(UserKernelError, match=f"more than {MAX_HINTS} hints"):
        check_source("\n".join(["def kernel(x_ptr):", *lines, ""]))
