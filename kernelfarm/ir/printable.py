"""Untrusted text as one line, for comments of generated code."""

from __future__ import annotations


def printable_line(text: str) -> str:
    """The text with a blank for each character that is not printable.

    A NUL ends a text in C, and parsers differ in the characters that end a line. Text after such a
    character would be read as code.
    """
    return "".join(c if c.isprintable() else " " for c in text)
