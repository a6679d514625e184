"""Comparison with expected texts ("goldens"), which `make goldens` rewrites.

A golden stands in the test that it belongs to, as a literal in triple quotes. Longer texts are
files. Tests that compare goldens carry the mark `golden`, so that `make goldens` finds them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from expecttest import assert_eq, assert_expected_inline

ACCEPT = "EXPECTTEST_ACCEPT"
"""The environment variable with which `make goldens` asks for new texts instead of failures."""
_HELP = "`make goldens` rewrites the expected text; review the difference like code"


def assert_golden(actual: str, expected: str) -> None:
    """Asserts that a text equals the literal in the test.

    `expected` must be the only literal in triple quotes of its statement, because `make goldens`
    rewrites the first one. A parametrized test cannot use it: one literal holds one text.
    """
    assert_expected_inline(without_digests(actual), expected, skip=1, assert_eq=_assert_equal)


def assert_golden_file(actual: str, path: Path) -> None:
    """Asserts that a text equals a file."""
    text = without_digests(actual)
    if os.environ.get(ACCEPT):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    _assert_equal(path.read_text(encoding="utf-8"), text, msg=_HELP)


def without_digests(text: str) -> str:
    """The text with kernel names that do not depend on the kernel's key.

    A name ends in digits of the key, and each change of the canonical text changes all keys.
    """
    return re.sub(r"\b(fused_\w*?)_[0-9a-f]{8}\b", r"\1_NAME", text)


def _assert_equal(expected: str, actual: str, *, msg: str) -> None:
    """Like `assert_eq`, but a failure names the command. `msg` is for failures of that command."""
    assert_eq(expected, actual, msg=msg if os.environ.get(ACCEPT) else _HELP)
