"""Applies the hints of a user's Triton kernel: other loops, other options, and notes on the rest.

A hint changes how a kernel runs, never what it computes. One that the vendor does not know, or
that does not fit its statement, is ignored, and a note says why.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen_svc.backends.triton_statements import is_range, loads_in, statement_at
from kernelfarm.ir.hints import FLAT_GROUP, PIPELINE_HINTS, PIPELINE_STAGES, SWITCHES
from kernelfarm.ir.triton.check_kernel import OPTIONS
from kernelfarm.ir.triton.hints import Hint, hints_of
from kernelfarm.ir.triton.user_kernel import UserKernel

_NUMBERS: Mapping[str, range] = {**OPTIONS, FLAT_GROUP: range(1, 1025)}
"""The numbers of hints that become options; a program may not have more threads than 1,024."""


@dataclass(frozen=True, slots=True)
class HintedKernel:
    """A kernel after its hints: its source has other loops; `options` are further ones."""

    kernel: UserKernel
    options: Mapping[str, int]
    notes: tuple[str, ...]


def apply_hints(kernel: UserKernel, known: frozenset[str]) -> HintedKernel:
    """A checked kernel with the hints that a vendor knows applied to it."""
    hints = hints_of(kernel.source)
    if not hints:
        return HintedKernel(kernel, {}, ())
    tree = ast.parse(kernel.source)
    options: dict[str, int] = {}
    notes: list[str] = []
    for hint in hints:
        problem = "it does not exist for this vendor"
        if hint.name in known:
            problem = (
                _pipeline(tree, hint)
                if hint.name in PIPELINE_HINTS
                else _option(kernel, hint, options)
            )
        result = f"ignored: {problem}" if problem else "applied"
        notes.append(f"hint {hint} at line {hint.line}: {result}")
    changed = replace(kernel, source=ast.unparse(tree) + "\n")
    return HintedKernel(changed, options, tuple(notes))


def _option(kernel: UserKernel, hint: Hint, options: dict[str, int]) -> str:
    """Why an option is not set; empty if it is."""
    if hint.name in dict(kernel.options):
        return "the launch states this option"
    is_switch = hint.name in SWITCHES
    value = 1 if is_switch and hint.value is None else hint.value
    allowed = range(2) if is_switch else _NUMBERS[hint.name]
    if value is None or value not in allowed:
        return f"expected a number from {allowed.start} to {allowed.stop - 1}"
    options[hint.name] = value
    return ""


def _pipeline(tree: ast.Module, hint: Hint) -> str:
    """Gives the loop around a load a pipeline; says why not, or nothing."""
    stages = PIPELINE_HINTS[hint.name] if hint.value is None else hint.value
    if stages not in PIPELINE_STAGES:
        return f"expected {PIPELINE_STAGES.start} to {PIPELINE_STAGES.stop - 1} stages"
    loop, statement = statement_at(tree, hint.line)
    if loop is None or statement is None or not loads_in(statement):
        return "expected it at a statement with tl.load in a loop"
    call = loop.iter
    if not isinstance(call, ast.Call) or not is_range(call.func):
        return "expected a loop over range or tl.range"
    stated = next((k for k in call.keywords if k.arg == "num_stages"), None)
    if stated is not None and not _is_less(stated.value, stages):
        return "the loop states its stages"
    call.func = ast.Attribute(ast.Name("tl", ast.Load()), "range", ast.Load())
    call.keywords = [k for k in call.keywords if k is not stated]
    call.keywords.append(ast.keyword("num_stages", ast.Constant(stages)))
    return ""


def _is_less(node: ast.expr, stages: int) -> bool:
    """True if an earlier hint, or the source, states fewer stages."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value < stages
