"""The stages of a kernel as the page's script reads them: compressed JSON, built on demand.

A kernel's stages take about 100 KiB as text. A page holds them compressed, and its script inflates
those that a reader opens.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from kernelfarm.ir.artifact import guard_text
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.pages.graph_lines import GraphLines
from kernelfarm.pages.line_marks import (
    MarkedText,
    MarkKind,
    mark_kernel,
    mark_stage,
    nodes_of_statements,
    origins_of,
    statements_of_source,
)
from kernelfarm.pages.program_facts import VariantFacts
from kernelfarm.pages.step_graph import bytes_text

_SOURCE_STAGES = ("triton",)
"""Stages whose lines later stages name."""


def packed(value: object) -> str:
    """A JSON value as base64 of its zlib stream; the same value gives the same text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8"), 6)).decode("ascii")


def kernel_panes(
    kernel: Kernel,
    variants: Sequence[VariantFacts],
    captured: GraphLines,
    prims: GraphLines,
    texts: Mapping[bytes, bytes],
) -> dict[str, Any]:
    """The panes of a kernel: those of the graph and the loops, and those of each variant."""
    nodes = [origin.node for origin in origins_of(kernel)]
    return {
        "nodesOf": nodes_of_statements(kernel),
        "common": [
            _pane("aten", _graph_lines(captured, nodes)),
            _pane("prims", _graph_lines(prims, nodes)),
            _pane("loops", mark_kernel(kernel)),
        ],
        "variants": [
            _variant(kernel, variant, number, len(variants), texts)
            for number, variant in enumerate(variants)
        ],
        "panes": _variant_panes(kernel, variants, texts),
    }


def variant_name(number: int, count: int) -> str:
    """`general` for the last variant, which has no guard; a number for others."""
    return "general" if number == count - 1 else f"variant {number}"


def _variant(
    kernel: Kernel,
    variant: VariantFacts,
    number: int,
    count: int,
    texts: Mapping[bytes, bytes],
) -> dict[str, Any]:
    sources = [texts[s.sha256] for s in variant.stages if s.name in _SOURCE_STAGES]
    statements = [statements_of_source(_decoded(source), kernel) for source in sources]
    return {
        "name": variant_name(number, count),
        "guard": guard_text(variant.guard),
        "statementsOf": statements[0] if statements else {},
    }


def _variant_panes(
    kernel: Kernel, variants: Sequence[VariantFacts], texts: Mapping[bytes, bytes]
) -> list[dict[str, Any]]:
    """The panes of all variants, stage by stage: texts of one stage resemble each other.

    A stream finds repetitions in its last 32 KiB only, and a variant's stages are longer than that.
    """
    panes: dict[str, list[dict[str, Any]]] = {}
    for number, variant in enumerate(variants):
        for stage in variant.stages:
            if stage.name == "kernel":
                continue  # it is the loops, which all variants share
            if stage.is_text:
                marked = mark_stage(stage.name, _decoded(texts[stage.sha256]), kernel)
                pane = _pane(stage.name, marked)
            else:
                pane = _binary(stage.name, stage.size_bytes)
            panes.setdefault(stage.name, []).append({"variant": number, **pane})
    return [pane for of_stage in panes.values() for pane in of_stage]


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _graph_lines(lines: GraphLines, nodes: Sequence[int]) -> MarkedText:
    found = lines.of(nodes)
    how = "The lines of the captured nodes that this kernel computes."
    return MarkedText(
        tuple(line for line, _ in found), MarkKind.NODE, tuple(marks for _, marks in found), how
    )


def _pane(name: str, text: MarkedText) -> dict[str, Any]:
    return {
        "name": name,
        "kind": text.kind.value,
        "how": text.how,
        "lines": text.lines,
        "marks": text.marks if text.kind is not MarkKind.NONE else [],
    }


def _binary(name: str, size_bytes: int) -> dict[str, Any]:
    how = f"A binary of {bytes_text(size_bytes)}; `kernelfarm compile` writes it to a file."
    return {"name": name, "kind": "", "how": how, "lines": [], "marks": []}
