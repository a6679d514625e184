"""Which gradients of attention a processor's kernels compute, and why not others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import all_targets, target_facts
from optimizer_svc.passes.choose_attention_gradients import choose_attention_gradients
from optimizer_svc.pipeline import optimize
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

TARGET = "cpu:x86-64-v4-bf16-amd"
LAYERS = """\
graph prims 1
%0: bf16[1, 4, 16, 8]@[512, 8, 32, 1] = input "queries"
%1: f32[1, 4, 16]@[64, 16, 1] = input "sums"
%2: bf16[1, 2, 20, 8]@[320, 8, 16, 1] = input "keys"
%3: bf16[1, 4, 16, 20]@[1280, 320, 20, 1] = input "mask"
%10: bf16[1, 4, 16, 8]@[512, 8, 32, 1], %11: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %12: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %13: bf16[0]@[1] = extern(%0, %0, %1, %0, %2, %2; is_causal=true, is_contraction=true, node=0, op="kernelfarm.attention_backward.default", scale=0.5) from [0]
%20: bf16[1, 4, 16, 8]@[512, 8, 32, 1], %21: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %22: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %23: bf16[1, 4, 16, 20]@[1280, 320, 20, 1] = extern(%0, %0, %1, %0, %2, %2, %3; is_contraction=true, node=1, op="kernelfarm.attention_backward.default", scale=0.5) from [1]
%30: bf16[1, 4, 16, 8]@[512, 8, 32, 1], %31: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %32: bf16[1, 2, 20, 8]@[320, 8, 16, 1], %33: bf16[0]@[1] = extern(%0, %0, %1, %0, %2, %2, %3; is_contraction=true, node=2, op="kernelfarm.attention_backward.default") from [2]
return %10: bf16[1, 4, 16, 8]@[512, 8, 32, 1], %23: bf16[1, 4, 16, 20]@[1280, 320, 20, 1], %30: bf16[1, 4, 16, 8]@[512, 8, 32, 1]
"""
_BEFORE, _, _REST = LAYERS.partition("%20:")
ONE = _BEFORE + "return %10: bf16[1, 4, 16, 8]@[512, 8, 32, 1]\n"


@pytest.mark.golden
def test_gradients_with_a_scale_are_by_kernels() -> None:
    found = before_and_after("choose-attention-gradients", LAYERS, TARGET)
    assert_golden(
        found.partition("-- after")[2],
        """\
: attention_gradients
by kernels: %10, %20
attention: 1 of gradients by kernels
attention: 1 of gradients, also of a mask, by kernels
attention: 1 of gradients by the framework: the scale varies, or results must not depend on scheduling
""",
    )


REFUSED = {
    "f64, for which kernels were not timed": ("cpu:x86-64-v3-amd", ("bf16", "f64")),
    "fewer than 16 queries or keys": (TARGET, ("20, 8]", "15, 8]")),
    "no scores or results": (TARGET, ("1, 2, 20, 8]", "1, 2, 0, 8]")),
    "other operands": (TARGET, ("f32[1, 4, 16]", "f32[1, 16, 4]")),
    "varying sizes": (TARGET, ("[1, 2, 20, 8]", "[1, 2, n, 8]")),
    "blocks of more than 33554432 bytes of scores": (TARGET, ("20, 8]", "150000001, 8]")),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_gradients_are_the_framework_s(reason: str) -> None:
    target, (old, new) = REFUSED[reason]
    text = ONE.replace(old, new).replace("prims 1\n", "prims 1\nsize n from 16 to 64\n")
    found = choose_attention_gradients(parse_graph(text), target_facts(target))
    assert not found.results
    assert found.notes == (f"attention: 1 of gradients by the framework: {reason}",)


def test_the_bound_is_that_of_one_block() -> None:
    """A prime number of keys is not divided: then a block is a head of 16 queries."""
    for keys, is_chosen in ((524287, True), (524309, False), (524352, True)):
        text = ONE.replace("20, 8]", f"{keys}, 8]")
        found = choose_attention_gradients(parse_graph(text), target_facts(TARGET))
        assert bool(found.results) is is_chosen


def test_targets_that_were_not_measured_leave_gradients_to_the_framework() -> None:
    graph = parse_graph(ONE)
    for name, facts in all_targets().items():
        is_measured = name.endswith("-amd")
        assert bool(choose_attention_gradients(graph, facts).results) is is_measured
    report = dict(optimize(graph, target_facts(TARGET)).stages)["report"]
    assert "attention: 1 of gradients by kernels" in report


def test_pairs_are_rounded_where_the_processor_multiplies_them() -> None:
    graph, facts = parse_graph(ONE), target_facts(TARGET)
    assert choose_attention_gradients(graph, facts).rounded == {10}
    assert facts.attention is not None
    plain = replace(facts, attention=replace(facts.attention, rounded_shares=()))
    assert not choose_attention_gradients(graph, plain).rounded


BIAS = LAYERS.partition("%10:")[0] + "%20:" + _REST.partition("%30:")[0]
BIAS += "return %23: bf16[1, 4, 16, 20]@[1280, 320, 20, 1]\n"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("%23: bf16[1, 4, 16, 20]@", "%23: bf16[1, 16, 4, 20]@", "other operands"),
        ("%2, %2, %3;", "%2, %2;", "other operands"),
        ("; is_con", "; is_causal=true, is_con", "a mask has gradients beside a causal one"),
        (
            "bf16[1, 4, 16, 20]",
            "bf16[1, 4, 16, 1]",
            "a mask that is one for all keys has gradients",
        ),
    ],
)
def test_gradients_with_another_mask_s_are_the_framework_s(old: str, new: str, reason: str) -> None:
    found = choose_attention_gradients(parse_graph(BIAS), target_facts(TARGET))
    assert found.mask_gradients == {20}
    found = choose_attention_gradients(parse_graph(BIAS.replace(old, new)), target_facts(TARGET))
    assert not found.results
    assert found.notes == (f"attention: 1 of gradients by the framework: {reason}",)
