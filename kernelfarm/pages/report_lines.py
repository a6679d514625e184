"""Reads a program's report: outcomes of captured nodes, operators of steps, refused fusions.

    node 6 aten.add.Tensor: decomposed (add)
    kernel fused_add_1f2e3d4c: flat blocks that cost as much as 96 bytes from memory, at least 96
    step 3: kernel fused_add_1f2e3d4c: aten.add.Tensor (6), aten.mul.Tensor (7)
    not fused: steps 3 and 5: extern steps lie between them

Lines of other forms are notes of passes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NODE = re.compile(r"node (\d{1,9}) (\S+): (\w+) \((.*)\)")
_STEP = re.compile(r"step (\d{1,9}): kernel \S+:(.*)")
_EXTERN = re.compile(r"step \d{1,9}: extern ")
_BLOCKS = re.compile(r"kernel (\S+): (.* bytes from memory, at least .*)")
_CAPTURED = re.compile(r"([^,()\s]*) ?\((\d{1,9})\)")
_REFUSAL = re.compile(r"not fused: steps (\d{1,9}) and (\d{1,9}): (.*)")


@dataclass(frozen=True, slots=True)
class CapturedOperator:
    """A captured node by number, with its operator; empty if the report does not name it."""

    node: int
    op: str


@dataclass(frozen=True, slots=True)
class CapturedOutcome:
    """What became of a captured node: `decomposed`, `folded`, `extern` or `removed`, and why."""

    node: int
    op: str
    outcome: str
    detail: str


@dataclass(frozen=True, slots=True)
class RefusedFusions:
    """A reason for which a step is not one kernel with some other steps."""

    reason: str
    others: tuple[int, ...]


@dataclass(slots=True)
class ReportFacts:
    """The facts of one report.

    `blocks` has the form of each kernel's blocks with its bytes, by the kernel's name. By step:
    `operators` are the captured operators of a launch, `refusals` the other steps that a
    step was not fused with, by reason.
    """

    outcomes: list[CapturedOutcome] = field(default_factory=list)
    blocks: dict[str, str] = field(default_factory=dict)
    operators: dict[int, tuple[CapturedOperator, ...]] = field(default_factory=dict)
    refusals: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def refusals_of(self, step: int) -> list[RefusedFusions]:
        """The refused fusions of one step, by reason."""
        reasons = self.refusals.get(step, {})
        return [RefusedFusions(reason, tuple(others)) for reason, others in reasons.items()]

    def refuse(self, first: int, second: int, reason: str) -> None:
        """Adds a refused fusion to both steps."""
        for step, other in ((first, second), (second, first)):
            self.refusals.setdefault(step, {}).setdefault(reason, []).append(other)


def read_report(text: str) -> ReportFacts:
    """The facts of a report's text."""
    facts = ReportFacts()
    for line in text.split("\n"):
        if found := _NODE.fullmatch(line):
            node, op, outcome, detail = found.groups()
            facts.outcomes.append(CapturedOutcome(int(node), op, outcome, detail))
        elif found := _STEP.fullmatch(line):
            facts.operators[int(found[1])] = tuple(
                CapturedOperator(int(node), op) for op, node in _CAPTURED.findall(found[2])
            )
        elif found := _BLOCKS.fullmatch(line):
            facts.blocks[found[1]] = found[2]
        elif found := _REFUSAL.fullmatch(line):
            facts.refuse(int(found[1]), int(found[2]), found[3])
        elif line and not _EXTERN.match(line):
            facts.notes.append(line)
    return facts
