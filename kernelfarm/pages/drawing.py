"""The fusion graph as shapes: boxes for steps, lines for buffers, in pixels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kernelfarm.pages.layered_layout import LayeredLayout, layered_layout
from kernelfarm.pages.report_lines import ReportFacts
from kernelfarm.pages.step_graph import StepGraph, StepNode

_BOX_WIDTH, _BOX_HEIGHT = 264, 58
_COLUMN, _MARGIN = 288, 16
_ROW_GAP, _LABEL_HEIGHT = 26, 13
_MOST_LABELS = 8
"""Labels above one box; further edges are named in the list of steps only."""
_TEXT_CHARS = 36
"""Characters of the drawing's font that fit into a box."""
MOST_STEPS = 2000
"""Steps that are drawn; a drawing of more would be slow to scroll."""


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """A step at (x, y); `lines` are its texts, shortened, and `hint` has them in full."""

    step: StepNode
    x: float
    y: float
    lines: tuple[str, ...]
    hint: str


@dataclass(frozen=True, slots=True)
class DrawnBuffer:
    """A buffer as an SVG path; its label is at (x, y) if it is not empty."""

    path: str
    label: str
    hint: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """All shapes; `left_out` steps are not drawn."""

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: tuple[DrawnStep, ...]
    lines: tuple[DrawnBuffer, ...]
    left_out: int


def draw_steps(graph: StepGraph, report: ReportFacts) -> Drawing:
    """The drawing of a program's first steps."""
    steps = graph.steps[:MOST_STEPS]
    edges = [edge for edge in graph.edges if edge.reader < len(steps)]
    layout = layered_layout(len(steps), [(edge.writer, edge.reader) for edge in edges])
    tops = _tops(layout, Counter(edge.reader for edge in edges))
    boxes = tuple(
        DrawnStep(
            step,
            _MARGIN + layout.columns[step.number] * _COLUMN,
            tops[layout.layers[step.number]],
            *_texts(step, graph, report),
        )
        for step in steps
    )
    lines: list[DrawnBuffer] = []
    seen: Counter[int] = Counter()
    count = Counter(edge.reader for edge in edges)
    for edge, bends in zip(edges, layout.bends, strict=True):
        position = seen[edge.reader]
        seen[edge.reader] += 1
        arrive = boxes[edge.reader].x + _BOX_WIDTH * (position + 1) / (count[edge.reader] + 1)
        start = boxes[edge.writer]
        points = [(start.x + _BOX_WIDTH / 2, start.y + _BOX_HEIGHT)]
        row = layout.layers[edge.writer]
        for step_down, bend in enumerate(bends, start=1):
            x = _MARGIN + bend * _COLUMN + _BOX_WIDTH / 2
            top = tops[row + step_down]
            points += [(x, top), (x, top + _BOX_HEIGHT)]
        end_y = boxes[edge.reader].y
        points.append((arrive, end_y))
        label = f"{edge.buffer} {graph.sizes[edge.buffer]}"
        shown = _shortened(label, 30) if position < _MOST_LABELS else ""
        hint = f"{label}: step {edge.writer} to step {edge.reader}"
        label_y = end_y - 5 - position * _LABEL_HEIGHT
        lines.append(DrawnBuffer(_path(points), shown, hint, arrive, label_y))
    height = max((box.y for box in boxes), default=0) + _BOX_HEIGHT + _MARGIN
    width = layout.width * _COLUMN + _MARGIN
    left_out = len(graph.steps) - len(steps)
    return Drawing(int(width), int(height), _BOX_WIDTH, _BOX_HEIGHT, boxes, tuple(lines), left_out)


def _tops(layout: LayeredLayout, arriving: Counter[int]) -> list[float]:
    """The upper edge of each layer; the gap above it has a row for each label."""
    rows = max(layout.layers, default=-1) + 1
    labels = [0] * rows
    for node, row in enumerate(layout.layers):
        labels[row] = max(labels[row], min(arriving[node], _MOST_LABELS))
    tops, y = [], float(_MARGIN)
    for row in range(rows):
        y += labels[row] * _LABEL_HEIGHT + (_ROW_GAP if row else 0)
        tops.append(y)
        y += _BOX_HEIGHT
    return tops


def _texts(step: StepNode, graph: StepGraph, report: ReportFacts) -> tuple[tuple[str, ...], str]:
    operators = [o.op.removeprefix("aten.") for o in report.operators.get(step.number, ())]
    outer = [name for name in step.reads if name in graph.inputs]
    results = [f"output {n}" for name in step.writes for n in graph.outputs.get(name, ())]
    traffic = f"reads {len(outer)} inputs" if outer else ""
    traffic += (", " if traffic and results else "") + ("writes " if results else "")
    traffic += ", ".join(results)
    texts = (f"{step.number}: {step.title}", ", ".join(operators) or step.kind, traffic)
    return tuple(_shortened(text, _TEXT_CHARS) for text in texts), ". ".join(filter(None, texts))


def _path(points: list[tuple[float, float]]) -> str:
    """A path through the points, vertical at each of them."""
    x, y = points[0]
    parts = [f"M{x:.0f} {y:.0f}"]
    for next_x, next_y in points[1:]:
        middle = (y + next_y) / 2
        if next_x == x:
            parts.append(f"V{next_y:.0f}")
        else:
            parts.append(
                f"C{x:.0f} {middle:.0f} {next_x:.0f} {middle:.0f} {next_x:.0f} {next_y:.0f}"
            )
        x, y = next_x, next_y
    return "".join(parts)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
