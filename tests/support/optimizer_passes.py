"""Runs one pass of the optimizer, and prints what it takes and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelfarm.ir.text import parse_graph, print_graph
from kernelfarm.ir.verify import verify_graph
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import PASSES, Pass, given_facts
from tests.support.optimizer_texts import (
    print_built_steps,
    print_contractions,
    print_fusion,
    print_layouts,
    print_materialization,
    print_nests,
    print_products,
    print_program,
    print_splits,
)

SOFTMAX = (Path(__file__).parent / "ir_texts" / "softmax.graph").read_text(encoding="utf-8")
"""Softmax over the rows of an f32 matrix of (s0, 8), as text."""
TARGET = "cpu:x86-64-v3"

_PRINTERS: dict[str, Callable[[Any], str]] = {
    "graph": print_graph,
    "attention": print_contractions,
    "attention_gradients": print_contractions,
    "batched_products": print_contractions,
    "convolutions": print_contractions,
    "winograd": print_contractions,
    "depthwise": print_contractions,
    "layouts": print_layouts,
    "products": print_products,
    "splits": print_splits,
    "chosen": print_materialization,
    "nests": print_nests,
    "fusion": print_fusion,
    "built": print_built_steps,
    "program": print_program,
    "report": str,
}
_SHOWN = {
    "fuse-nests": "nests",
    "order-steps": "fusion",
    "build-kernels": "fusion",
    "apply-hints": "built",
    "compute-in-place": "built",
    "plan-program": "built",
    "report-fusion": "program",
}
"""The input that is shown of a pass with several ones. By default it is the first one."""


def givers_of(step: Pass) -> tuple[Pass, ...]:
    """The passes that give a pass, or one of them, a fact other than the graph, in order."""
    needed = {*step.needs}
    found: list[Pass] = []
    for earlier in reversed(PASSES[: PASSES.index(step)]):
        if earlier.gives in needed and earlier.gives != "graph":
            found.append(earlier)
            needed |= {*earlier.needs}
    return tuple(reversed(found))


def before_and_after(name: str, graph: str, target: str = TARGET) -> str:
    """The input and the output of a pass as text.

    If the output is the input, its text is `the same`; if the pass only adds notes, `the same, and`
    the notes. The text of an equal object is printed, because a pass that changes nothing must
    return its input.

    A pass from graph to graph runs alone, on the graph of the test, after those that give it other
    facts. Before any other pass the whole pipeline up to it runs, because a test cannot write the
    other inputs as text.
    """
    facts = given_facts(parse_graph(graph), target_facts(target))
    verify_graph(facts["graph"])
    number = next(number for number, step in enumerate(PASSES) if step.name == name)
    step = PASSES[number]
    for earlier in givers_of(step) if step.gives == "graph" else PASSES[:number]:
        facts[earlier.gives] = earlier.run(*(facts[need] for need in earlier.needs))
    shown = _SHOWN.get(name, step.needs[0])
    given, made = facts[shown], step.run(*(facts[need] for need in step.needs))
    if step.gives == "graph":
        verify_graph(made)
    before, after = _PRINTERS[shown](given), _PRINTERS[step.gives](made)
    if made is given:
        after = "the same"
    elif after.startswith(before) and after != before:
        after = f"the same, and\n{after.removeprefix(before)}"
    lines = (f"-- before {name}: {shown}", before, f"-- after: {step.gives}", after)
    return "".join(f"{line.rstrip()}\n" for line in lines)
