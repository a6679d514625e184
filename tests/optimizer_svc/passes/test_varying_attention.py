"""Attention of varying numbers of queries and keys, whose scores have a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import AttentionFacts, TargetFacts, all_targets, target_facts
from optimizer_svc.passes.choose_attention import choose_attention
from tests.support.compiled_kernels import run_targets
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import capturing

B, H, WIDTH, MOST = 2, 6, 16, 100
TYPES = ("bf16", "f16", "f32")
FACTS = AttentionFacts(TYPES, TYPES, 16, 1 << 20, whole_causal=True)
GRAPH = """\
graph prims 1
size n from 2{limit}
%0: f32[2, 4, n, 8]@[32*n, 8*n, 8, 1] = input "q"
%1: f32[2, 2, n, 8]@[16*n, 8*n, 8, 1] = input "k"
%2: f32[2, 2, n, 8]@[16*n, 8*n, 8, 1] = input "v"
%3: f32[2, 4, n, 8]@[32*n, 8, 32, 1] = extern(%0, %1, %2; is_causal={causal}, is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
return %3: f32[2, 4, n, 8]@[32*n, 8, 32, 1]
"""


def attending(name: str, **changes: Any) -> TargetFacts:
    return replace(target_facts(name), attention=replace(FACTS, **changes))


def notes(limit: str, causal: str = "false", **changes: Any) -> tuple[str, ...]:
    graph = parse_graph(GRAPH.format(limit=limit, causal=causal))
    return choose_attention(graph, attending("cpu:x86-64-v4", **changes)).notes


def test_kernels_compute_attention_whose_scores_have_a_limit() -> None:
    """8 heads of 181 queries and keys take 1,048,352 bytes, of 182 more than 1 MiB."""
    assert notes(" to 181") == ("attention: 1 of several queries by kernels",)


@pytest.mark.parametrize("limit", [" to 182", ""])
def test_attention_without_such_a_limit_stays_with_the_framework(limit: str) -> None:
    assert notes(limit) == (
        "attention: 1 by the framework: of varying sizes, whose scores may take more than"
        " 1048576 bytes",
    )


def test_causal_attention_is_the_framework_s_where_kernels_lose_by_hidden_scores() -> None:
    assert notes(" to 181", "true") == ("attention: 1 of several queries by kernels",)
    assert notes(" to 181", "true", whole_causal=False) == (
        "attention: 1 by the framework: of several queries, causal, with varying sizes",
    )


def test_targets_with_vectors_of_512_bits_compute_hidden_scores() -> None:
    known = {n: f.attention for n, f in all_targets().items() if f.attention is not None}
    assert {n: a.whole_causal for n, a in known.items()} == {n: "v4" in n for n in known}


def attend(rows: Tensor, cells: Tensor | None, **how: Any) -> Tensor:
    """Attention of `H` heads to `H` or fewer, whose layout no one sees."""
    query, key, value = rows.unflatten(2, (-1, WIDTH)).transpose(1, 2).split((H, 3, 3), 1)
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=cells, enable_gqa=True, **how
    )
    return found.transpose(1, 2).flatten(2) + 0


FORMS: dict[str, tuple[Callable[[int], Tensor | None], dict[str, Any]]] = {
    "plain": (lambda _: None, {}),
    "causal": (lambda _: None, {"is_causal": True}),
    "bool": (lambda n: torch.rand(B, 1, n, n) < 0.7, {}),
    "added": (lambda n: torch.randn(B, 1, n, n), {}),
}


@pytest.mark.sweep
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", FORMS)
def test_one_program_attends_as_exactly_as_the_framework(
    target: str, dtype: torch.dtype, form: str
) -> None:
    torch.manual_seed(0)
    counts, (mask, how) = Counts(), FORMS[form]

    def compiled(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., object]:
        program = compile_here(captured, counts, attending(target))
        return lambda *given: program(list(given))

    torch._dynamo.reset()
    fast = torch.compile(lambda *given: attend(*given, **how), backend=capturing(compiled))
    with torch.no_grad():
        for number in (40, 17, 2, MOST):
            rows, cells = torch.randn(B, number, 12 * WIDTH).to(dtype), mask(number)
            if cells is not None and cells.dtype is not torch.bool:
                cells = cells.to(dtype)
            given = [(rows, 1), *((cells, axis) for axis in (2, 3) if cells is not None)]
            for tensor, axis in given:
                torch._dynamo.mark_dynamic(tensor, axis, min=2, max=MOST)
            wide = cells if cells is None or cells.dtype is torch.bool else cells.double()
            exact = attend(rows.double(), wide, **how)
            errors = [
                (found.double() - exact).abs().max().item()
                for found in (fast(rows, cells), attend(rows, cells, **how))
            ]
            assert errors[0] <= max(4 * errors[1], 2**-22)
    assert (counts.graphs, counts.externs) == (1, [])
