"""Text of others on one line: what may stand in a comment of generated code."""

from __future__ import annotations


def printable_line(text: str) -> str:
    """The text with a blank for each character that is not printable.

    A NUL ends a text in C, and each parser knows other ends of lines: what follows one of them
    would be read as code.
    """
    return "".join(c if c.isprintable() else " " for c in text)
