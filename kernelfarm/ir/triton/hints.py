"""Hints in the source of a user's Triton kernel: comments that a target's compiler may follow.

    acc += tl.load(x_ptr + at)  # @hint: shared_memory, async=3

A comment stands at the end of a statement's first line in the canonical source. It is part of the
text, so it travels, is checked and counts in digests like the rest. What a target does with a hint
is in `codegen_svc/backends/triton_hints.py`.
"""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass
from typing import Final

from kernelfarm.errors import UserKernelError
from kernelfarm.ir.hints import MAX_HINTS, read_hint

_MARK: Final = "@hint"
_COMMENT: Final = re.compile(r"#\s*@hint:(.*)")


@dataclass(frozen=True, slots=True)
class Hint:
    """A name, the number that it states or None, and the source's line, counted from one."""

    name: str
    value: int | None
    line: int

    def __str__(self) -> str:
        """The hint as a comment states it."""
        return self.name if self.value is None else f"{self.name}={self.value}"


def hints_of(text: str) -> tuple[Hint, ...]:
    """The hints of a source that Python's parser accepts.

    Raises:
        UserKernelError: a comment has another form, or there are too many hints.
    """
    if _MARK not in text:
        return ()
    found: list[Hint] = []
    for token in _comments(text):
        found += _hints_of_comment(token.string, token.start[0])
        if len(found) > MAX_HINTS:
            raise UserKernelError(f"more than {MAX_HINTS} hints; expected at most as many")
    return tuple(found)


def with_hints(line: str, hints: list[Hint]) -> str:
    """A line of canonical source with its hints."""
    return f"{line}  # {_MARK}: {', '.join(map(str, hints))}" if hints else line


def _comments(text: str) -> list[tokenize.TokenInfo]:
    try:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return [token for token in tokens if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError) as error:
        raise UserKernelError(f"the source's comments cannot be read: {error}") from error


def _hints_of_comment(comment: str, line: int) -> list[Hint]:
    match = _COMMENT.match(comment)
    if match is None:
        return []
    hints = []
    for part in match[1].split(",", MAX_HINTS + 1):
        found = read_hint(part)
        if found is None:
            raise UserKernelError(
                f"line {line}: hint {part.strip()[:60]!r}; expected NAME or NAME=NUMBER, several"
                " with commas between them"
            )
        hints.append(Hint(found.name, found.value, line))
    return hints
