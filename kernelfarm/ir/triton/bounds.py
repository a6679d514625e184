"""What a source may cost: bounds that are checked before, while and after it is parsed.

The limits are far above those of real kernels (the largest public one that we know, an attention
gradient, has 20 KiB and 5,000 nodes) and far below what Python's parser and Triton can bear.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable

from kernelfarm.errors import UserKernelError

MAX_SOURCE_BYTES = 128 * 1024
MAX_BRACKET_DEPTH = 40
MAX_NODES = 20_000
MAX_DEPTH = 80
MAX_FUNCTIONS = 64
MAX_GLOBALS = 256
MAX_PARAMS = 128
MAX_INLINED_NODES = 400_000
"""Triton inlines every call, so helpers that call each other can grow exponentially."""
MAX_UNROLLED = 4096
"""The most repetitions of a loop that Triton unrolls, inner loops multiplied by outer ones."""
MAX_INTEGER = 1 << 64
MAX_SHIFT = 63
MAX_EXPONENT = 64
MAX_TEXT_CHARS = 200
MAX_CONFIGURATIONS = 128
"""Configurations of one kernel; public kernels have up to 81. Each is a compilation of a second."""
MAX_CONFIGURED_CHARS = 4 * 1024 * 1024
"""Characters of all copies of a source, one for each configuration."""

_OPENING, _CLOSING = "([{", ")]}"


def parsed(text: str) -> ast.Module:
    """The syntax tree of a source within the bounds.

    Raises:
        UserKernelError: it is too large, is nested too deeply, or is no Python.
    """
    _check_text(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise UserKernelError(f"the source is no Python: {str(error)[:MAX_TEXT_CHARS]}") from error
    except (RecursionError, MemoryError) as error:
        raise UserKernelError(
            "the source is nested more deeply than Python's parser allows;"
            " expected shorter expressions"
        ) from error
    _check_tree(tree)
    return tree


def _check_text(text: str) -> None:
    if len(text) > MAX_SOURCE_BYTES:
        raise UserKernelError(
            f"the source has {len(text)} characters; expected at most {MAX_SOURCE_BYTES}"
        )
    if not text.isascii() or "\0" in text:
        raise UserKernelError("the source has characters that are not ASCII; expected ASCII only")
    depth = deepest = 0
    for char in text:
        if char in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif char in _CLOSING:
            depth -= 1
    if deepest > MAX_BRACKET_DEPTH:
        raise UserKernelError(
            f"{deepest} brackets are open at once; expected at most {MAX_BRACKET_DEPTH}"
        )


def _check_tree(tree: ast.AST) -> None:
    """Checks number and depth of the nodes, without recursion."""
    level: Iterable[ast.AST] = (tree,)
    depth = count = 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
        count += len(level)
        if depth > MAX_DEPTH or count > MAX_NODES:
            raise UserKernelError(
                f"the syntax tree has more than {MAX_DEPTH} levels or {MAX_NODES} nodes;"
                " expected a smaller kernel"
            )


def node_count(tree: ast.AST) -> int:
    """The number of nodes of a tree."""
    return sum(1 for _ in ast.walk(tree))
