"""Attention that kernels compute has the framework's results; other attention stays with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.custom_operators.attention import ATTENTION_SAVING
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.processor_products import find_processor_product
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import AttentionFacts, TargetFacts, all_targets, target_facts
from optimizer_svc.passes.choose_attention import choose_attention
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import run_targets, unless_it_runs
from tests.support.contraction_programs import run
from tests.support.in_process_compiler import Counts, compile_here
from tests.support.traced_graphs import capturing

B, H, KEYS, WIDTH = 2, 6, 37, 16
QUERIES = 29
ONE_QUERY = """\
graph prims 1
%0: bf16[1, 4, 1, 8]@[32, 8, 8, 1] = input "q"
%1: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "k"
%2: bf16[1, 2, 5, 8]@[80, 40, 8, 1] = input "v"
%3: bf16[1, 1, 1, 5]@[5, 5, 5, 1] = input "mask"
%4: bf16[1, 4, 1, 8]@[32, 8, 32, 1] = extern(%0, %1, %2, %3; is_contraction=true, node=0, op="aten.scaled_dot_product_attention.default", scale=0.5) from [0]
%5: bf16[1, 4, 1, 8] = neg(%4) from [1]
return %5: bf16[1, 4, 1, 8]@[32, 8, 8, 1]
"""
TYPES = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22}
FACTS = AttentionFacts(("bf16", "f16", "f32"), ("bf16", "f16", "f32"), 16, 1 << 20)


def attending(name: str) -> TargetFacts:
    return replace(target_facts(name), attention=FACTS)


def heads(
    dtype: torch.dtype, *, queries: int = 1, groups: int = 2, value_width: int = WIDTH
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (
        (B, H, queries, WIDTH),
        (B, groups, KEYS, WIDTH),
        (B, groups, KEYS, value_width),
    )
    query, key, value = (torch.randn(shape).to(dtype) for shape in shapes)
    return query, key, value


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **how: Any) -> Tensor:
    """Attention whose layout no one sees."""
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=True, **how
    )
    return found.transpose(1, 2).flatten(2) + 0


def masks() -> dict[str, Tensor | None]:
    seen = torch.arange(KEYS) < 20
    added = torch.randn(B, 1, 1, KEYS)
    return {
        "none": None,
        "bool": seen.expand(B, 1, 1, KEYS),
        "of keys": seen[None],
        "added": added,
        "of heads": torch.randn(1, H, 1, KEYS),
        "of one batch": torch.where(seen, 0.0, -torch.inf)[None, None, None],
        "with gaps": torch.rand(B, H, 1, KEYS) < 0.6,
    }


@pytest.mark.sweep
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", masks())
def test_one_query_is_attended_as_exactly_as_by_the_framework(
    target: str, dtype: torch.dtype, name: str
) -> None:
    torch.manual_seed(0)
    mask = masks()[name]
    mask = mask if mask is None or mask.dtype is torch.bool else mask.to(dtype)
    args = heads(dtype)
    counts = Counts()
    ours, _ = run(attending(target), counts, attend, *args, mask)
    assert not counts.externs
    wide = mask if mask is None or mask.dtype is torch.bool else mask.double()
    exact = attend(*(a.double() for a in args), wide)
    errors = [(y.double() - exact).abs().max().item() for y in (ours, attend(*args, mask))]
    assert errors[0] <= max(4 * errors[1], TYPES[dtype])


CACHE_TARGETS = [
    *run_targets(),
    pytest.param(PAIRS := "cpu:x86-64-v4-bf16-amd", marks=unless_it_runs(PAIRS)),
]


@pytest.mark.parametrize("target", CACHE_TARGETS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("groups", [2, H])
def test_what_a_mask_hides_is_not_read(target: str, dtype: torch.dtype, groups: int) -> None:
    """A cache has room for more keys: what is there, also NaN, changes nothing."""
    torch.manual_seed(0)
    query, cache = torch.randn(B, H, 1, 64).to(dtype), torch.randn(2, B, groups, KEYS, 64)
    key, value = cache.to(dtype)
    seen = torch.arange(KEYS) < torch.tensor([[5], [31]])
    mask, counts = seen[:, None, None], Counts()
    fill = torch.where(seen, 0.0, torch.nan).to(dtype)[:, None, :, None]
    ours, _ = run(attending(target), counts, attend, query, key + fill, value + fill, mask)
    assert not counts.externs
    exact = attend(query.double(), key.double(), value.double(), mask)
    eager = attend(query, key, value, mask)
    errors = [(y.double() - exact).abs().max().item() for y in (ours, eager)]
    assert errors[0] <= max(4 * errors[1], TYPES[dtype])


@pytest.mark.parametrize("target", run_targets())
def test_scores_that_are_no_numbers_are_those_of_the_framework(target: str) -> None:
    """Only the mask hides keys: NaN that a query sees is a result."""
    query, key, value = heads(torch.float32)
    key[1, 0, 3], mask = torch.nan, masks()["bool"]
    assert mask is not None
    ours, _ = run(attending(target), Counts(), attend, query, key, value, mask)
    torch.testing.assert_close(ours, attend(query, key, value, mask), equal_nan=True)
    assert ours.isnan().any()


def masks_of_queries() -> dict[str, Tensor | None]:
    """Masks of attention of `QUERIES` queries."""
    before = torch.arange(KEYS)[None] <= torch.arange(QUERIES)[:, None]
    return {
        "none": None,
        "bool": before[None, None],
        "of keys": (torch.arange(KEYS) < 20).expand(B, 1, 1, KEYS),
        "added": torch.randn(B, H, QUERIES, KEYS),
        "of one batch": torch.where(before, 0.0, -torch.inf),
    }


@pytest.mark.sweep
@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", masks_of_queries())
def test_several_queries_are_attended_as_exactly_as_by_the_framework(
    target: str, dtype: torch.dtype, name: str
) -> None:
    torch.manual_seed(0)
    mask = masks_of_queries()[name]
    mask = mask if mask is None or mask.dtype is torch.bool else mask.to(dtype)
    args = heads(dtype, queries=QUERIES, value_width=24)
    counts = Counts()
    ours, _ = run(attending(target), counts, attend, *args, mask)
    assert not counts.externs
    wide = mask if mask is None or mask.dtype is torch.bool else mask.double()
    exact = attend(*(a.double() for a in args), wide)
    errors = [(y.double() - exact).abs().max().item() for y in (ours, attend(*args, mask))]
    assert errors[0] <= max(4 * errors[1], TYPES[dtype])


@pytest.mark.parametrize("queries", [1, 16, QUERIES])
@pytest.mark.parametrize("target", run_targets())
def test_a_causal_mask_hides_later_keys(target: str, queries: int) -> None:
    args, counts = heads(torch.float32, queries=queries), Counts()
    ours, graph = run(
        attending(target), counts, lambda *given: attend(*given, None, is_causal=True), *args
    )
    assert not counts.externs
    assert [node.attr("is_causal") for node in graph.nodes if node.op == "extern"] == [True]
    exact = attend(*(a.double() for a in args), None, is_causal=True)
    torch.testing.assert_close(ours, exact.float())


def test_products_of_several_queries_are_in_tiles() -> None:
    """Also of 16 bits: a panel and the rows of a tile are converted where they are read."""
    args = heads(torch.bfloat16, queries=QUERIES)
    _, graph = run(attending("cpu:x86-64-v3"), Counts(), attend, *args, None)
    kernels = optimize(graph, attending("cpu:x86-64-v4")).program.kernels
    rows = [None if found is None else found.rows for found in map(find_processor_product, kernels)]
    extents = [None if axis is None else axis.extent.constant for axis in rows]
    assert extents == [3 * QUERIES, None, QUERIES]  # three heads share keys and values


@pytest.mark.parametrize("target", run_targets())
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_heads_may_share_keys_and_values_of_another_width(target: str, groups: int) -> None:
    torch.manual_seed(groups)
    args = heads(torch.float32, groups=groups, value_width=24)
    counts = Counts()
    ours, _ = run(attending(target), counts, attend, *args, None)
    assert not counts.externs
    torch.testing.assert_close(ours, attend(*args, None))


@pytest.mark.parametrize("target", run_targets())
def test_the_number_of_keys_may_vary(target: str) -> None:
    """One program serves a cache that grows."""
    counts = Counts()

    def compiled(captured: CapturedGraph, _: fx.GraphModule) -> Callable[..., object]:
        program = compile_here(captured, counts, attending(target))
        return lambda *given: program(list(given))

    def function(query: Tensor, cache: Tensor) -> Tensor:
        return attend(query, cache[0], cache[1], None)

    torch._dynamo.reset()
    fast = torch.compile(function, backend=capturing(compiled))
    with torch.no_grad():
        for keys in (5, 6, 70):
            query, cache = torch.randn(B, H, 1, WIDTH), torch.randn(2, B, 2, keys, WIDTH)
            torch._dynamo.maybe_mark_dynamic(cache, 3)
            torch.testing.assert_close(fast(query, cache), function(query, cache))
    assert (counts.graphs, counts.externs) == (1, [])


@pytest.mark.parametrize("target", run_targets())
def test_a_query_that_sees_no_key_has_zeros(target: str) -> None:
    args, counts = heads(torch.float32), Counts()
    mask = torch.ones(B, 1, 1, KEYS, dtype=torch.bool)
    mask[1] = False
    ours, _ = run(attending(target), counts, attend, *args, mask)
    assert not counts.externs
    assert not ours[1].any()
    torch.testing.assert_close(ours, attend(*args, mask))


@pytest.mark.parametrize("target", run_targets())
def test_a_stated_scale_multiplies_the_scores(target: str) -> None:
    args, counts = heads(torch.float32), Counts()
    ours, graph = run(
        attending(target), counts, lambda *given: attend(*given, None, scale=0.3), *args
    )
    assert not counts.externs
    assert [node.attr("scale") for node in graph.nodes if node.op == "extern"] == [0.3]
    torch.testing.assert_close(ours, attend(*args, None, scale=0.3))


@pytest.mark.parametrize("target", run_targets())
def test_a_returned_result_has_the_layout_of_the_framework_s(target: str) -> None:
    """Its graph has the framework's own operator for processors."""
    args, counts = heads(torch.float32, groups=H), Counts()

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value)

    ours, graph = run(attending(target), counts, function, *args)
    assert "flash_attention_for_cpu" in str([node.attr("op") for node in graph.nodes])
    assert not counts.externs
    eager = function(*args)
    assert ours.stride() == eager.stride()
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("target", run_targets())
def test_log_sum_exps_are_those_that_the_framework_saves_for_gradients(target: str) -> None:
    """Also 0 for a query that sees no key: the framework's gradients may start from them."""
    args, counts = heads(torch.float32, queries=QUERIES, groups=H), Counts()
    mask = torch.zeros(B, 1, QUERIES, KEYS).masked_fill(torch.rand(QUERIES, KEYS) < 0.4, -torch.inf)
    mask[1, :, 3] = -torch.inf

    def function(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        found, sums = ATTENTION_SAVING(query, key, value, mask, False, None, False, False)
        return torch.cat([found, sums.unsqueeze(-1)], -1)

    ours, _ = run(attending(target), counts, function, *args, mask)
    assert not counts.externs
    torch.testing.assert_close(ours, function(*args, mask))


def test_one_query_with_its_log_sum_exp_stays_with_the_framework() -> None:
    graph = parse_graph(
        ONE_QUERY.replace("aten.scaled_dot_product_attention", "kernelfarm.attention_saving")
        .replace(
            "%4: bf16[1, 4, 1, 8]@[32, 8, 32, 1] =",
            "%4: bf16[1, 4, 1, 8]@[32, 8, 32, 1], %6: f32[1, 4, 1]@[4, 1, 1] =",
        )
        .replace("return ", "return %6: f32[1, 4, 1]@[4, 1, 1], ")
    )
    found = choose_attention(graph, attending("cpu:x86-64-v4"))
    assert found.notes == (
        "attention: 1 by the framework: whose log-sum-exps are read, of one query",
    )


REFUSED: dict[str, tuple[Callable[[], tuple[Tensor, ...]], dict[str, Any]]] = {
    "of 2 to 15 queries": (lambda: heads(torch.float32, queries=15), {}),
    "with blocks of more than 1048576 bytes of scores": (
        lambda: heads(torch.float32, queries=7103),
        {},
    ),
    "it has dropout, or a scale that varies": (lambda: heads(torch.float32), {"scale": 1e31}),
    "of f64, for which kernels were not timed": (lambda: heads(torch.float64), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_attention_stays_with_the_framework(reason: str) -> None:
    make, how = REFUSED[reason]
    (target, *_) = (name for name in all_targets() if name.startswith("cpu:x86"))
    graphs: list[Graph] = []

    def compiled(captured: CapturedGraph, gm: fx.GraphModule) -> Callable[..., object]:
        graphs.append(decompose_to_prims(captured.graph).graph)
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(
            lambda *given: attend(*given, None, **how), backend=capturing(compiled), dynamic=False
        )(*make())
    found = choose_attention(graphs[0], attending(target))
    assert not found.results
    assert reason in "\n".join(found.notes)


@pytest.mark.parametrize("queries", [1, 16])
def test_attention_to_no_keys_stays_with_the_framework(queries: int) -> None:
    text = ONE_QUERY.replace("bf16[1, 4, 1, 8]", f"bf16[1, 4, {queries}, 8]")
    text = text.replace("[1, 2, 5, 8]", "[1, 2, 0, 8]").replace("[1, 1, 1, 5]", "[1, 1, 1, 0]")
    found = choose_attention(parse_graph(text), attending("cpu:x86-64-v4"))
    assert found.notes == ("attention: 1 by the framework: without scores or results",)


def test_targets_that_were_not_measured_leave_attention_to_the_framework() -> None:
    _, graph = run(attending("cpu:x86-64-v3"), Counts(), attend, *heads(torch.bfloat16), None)
    for name, facts in all_targets().items():
        is_measured = name.endswith("-amd")
        assert bool(choose_attention(graph, facts).results) is is_measured
    report = dict(optimize(graph, target_facts("cpu:x86-64-v4-amd")).stages)["report"]
    assert "attention: 1 of one query by kernels" in report
