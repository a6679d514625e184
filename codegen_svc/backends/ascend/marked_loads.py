"""Hints of a user's kernel as marks: numbers that loads carry from the source to the Linalg text.

In the source, a load with hints stands in a call of `mark`. Triton's IR then has the numbers as an
attribute of the load. The adapter drops attributes, but it keeps annotations of values, so each
number becomes one: `tt.annotation`, which is `annotation.mark` in the Linalg text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from codegen_svc.backends.triton_statements import is_range, loads_in, statement_at
from kernelfarm.ir.hints import DOT_PAD_ONLY_K, MULTIBUFFER, block_copies
from kernelfarm.ir.triton.hints import Hint, hints_of
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import LocalBufferFacts

MARK = "kernelfarm.mark"
IMPORTS = ("from codegen_svc.backends.ascend.load_mark import mark as __mark",)

_LOAD = re.compile(
    r"^\s*(?P<value>%[\w$.-]+) = tt\.load .*\{.*kernelfarm\.mark = "
    r"dense<\[?(?P<numbers>[\d, ]+)\]?>.*\}"
    r" : tensor<(?P<shape>[0-9x]+)x!tt\.ptr<(?P<element>\w+)>>(?: loc\(.*\))?$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class LoadHint:
    """A hint that fits its statement; `of_loop` if it is for all loads of a loop.

    `copies` is how many buffers each block has, 0 for other hints.
    """

    hint: Hint
    of_loop: bool
    copies: int = 0


@dataclass(frozen=True, slots=True)
class MarkedKernel:
    """A kernel's hints by the number of their mark, and its definitions with marked loads.

    `stated` are all hints in order; `problems` says by hint why it is ignored.
    """

    stated: tuple[Hint, ...]
    hints: tuple[LoadHint, ...]
    definitions: Mapping[str, str]
    problems: Mapping[Hint, str]


UNMARKED = MarkedKernel((), (), {}, {})
"""A kernel without hints."""


def mark_loads(kernel: UserKernel, chip: LocalBufferFacts) -> MarkedKernel:
    """A checked kernel with marks on the loads that its hints are for."""
    tree = ast.parse(kernel.source)
    stated = hints_of(kernel.source)
    hints: list[LoadHint] = []
    problems: dict[Hint, str] = {}
    numbers: dict[ast.Call, list[int]] = {}
    for hint in stated:
        _, statement = statement_at(tree, hint.line)
        problem = _misfit(hint, chip) or _statement_misfit(hint, statement)
        if problem or statement is None:
            problems[hint] = problem
            continue
        for load in loads_in(statement):
            numbers.setdefault(load, []).append(len(hints))
        hints.append(LoadHint(hint, isinstance(statement, ast.For), _copies(hint)))
    marked = _Marker(numbers).visit(tree)
    definitions = {n.name: ast.unparse(n) for n in marked.body if isinstance(n, ast.FunctionDef)}
    return MarkedKernel(stated, tuple(hints), definitions if numbers else {}, problems)


def annotate_marks(ttir: str) -> str:
    """Triton's IR in which each mark of a load is an annotation of the block that it loads."""
    return _LOAD.sub(_annotated, ttir)


def _misfit(hint: Hint, chip: LocalBufferFacts) -> str:
    """Why the chip does not follow a hint; empty if it does."""
    if hint.name not in chip.hints:
        return "it does not exist for this vendor"
    if hint.name == DOT_PAD_ONLY_K:
        return "" if hint.value is None else "expected no number"
    is_known = 2 <= block_copies(hint.value) <= chip.max_block_copies
    return "" if is_known else f"expected a number from 2 to {chip.max_block_copies}"


def _statement_misfit(hint: Hint, statement: ast.stmt | None) -> str:
    """Why a hint does not fit its statement; empty if it does."""
    is_block = isinstance(statement, ast.FunctionDef | ast.If | ast.While)
    if statement is None or is_block or not loads_in(statement):
        return "expected it at a statement with tl.load"
    if not isinstance(statement, ast.For):
        return ""
    if hint.name == DOT_PAD_ONLY_K:
        return "expected it at a statement with tl.load, not at a loop"
    call = statement.iter
    is_loop = isinstance(call, ast.Call) and is_range(call.func)
    return "" if is_loop else "expected a loop over range or tl.range"


def _copies(hint: Hint) -> int:
    return block_copies(hint.value) if hint.name == MULTIBUFFER else 0


class _Marker(ast.NodeTransformer):
    """Puts loads into calls of `mark`."""

    def __init__(self, numbers: Mapping[ast.Call, Sequence[int]]) -> None:
        self._numbers = numbers

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        numbers = self._numbers.get(node)
        if numbers is None:
            return node
        return ast.Call(ast.Name("__mark", ast.Load()), [node, *map(ast.Constant, numbers)], [])


def _annotated(found: re.Match[str]) -> str:
    block = f"tensor<{found['shape']}x{found['element']}>"
    marks = (
        f'"tt.annotation"({found["value"]}) {{{MARK} = {number} : i32}} : ({block}) -> ()'
        for number in found["numbers"].split(", ")
    )
    return "\n".join((found[0], *marks))
