"""Runs one pass of the frontend, and prints what it takes and what it gives."""

from __future__ import annotations

from frontend_svc.decompose.pipeline import PASSES
from frontend_svc.decompose.report import PassNote
from kernelfarm.ir.text import parse_graph, print_graph
from kernelfarm.ir.verify import verify_graph


def before_and_after(name: str, graph: str) -> str:
    """The graph before and after a pass as text, and its notes; for an equal graph `the same`."""
    given = parse_graph(graph)
    verify_graph(given)
    (step,) = (step for step in PASSES if step.name == name)
    result = step.rewrite(given, given)
    verify_graph(result.graph)
    before, after = print_graph(given).rstrip(), print_graph(result.graph).rstrip()
    lines = [
        f"-- before {name}: graph",
        before,
        "-- after: graph",
        "the same" if after == before else after,
        *map(_note, result.notes),
    ]
    return "\n".join(lines) + "\n"


def _note(note: PassNote) -> str:
    nodes = ", ".join(map(str, note.origins))
    return f"note: from [{nodes}]: {note.outcome.value}: {note.reason}"
