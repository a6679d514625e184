"""Which batched products kernels compute; `test_compute_batched_products.py` has their results."""

from __future__ import annotations

import pytest

from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from optimizer_svc.passes.choose_batched_products import choose_batched_products
from tests.support.contraction_programs import BATCHED
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

AMD = "cpu:x86-64-v4-amd"


@pytest.mark.golden
def test_batched_products_of_f32_are_by_kernels() -> None:
    assert_golden(
        before_and_after("choose-batched-products", BATCHED, AMD),
        """\
-- before choose-batched-products: graph
graph prims 1
%0: f32[3, 8, 5]@[40, 5, 1] = input "x"
%1: f32[3, 5, 9]@[45, 9, 1] = input "y"
%2: f32[3, 8, 9]@[72, 9, 1] = extern(%0, %1; is_contraction=true, node=0, op="aten.bmm.default") from [0]
return %2: f32[3, 8, 9]@[72, 9, 1]
-- after: batched_products
by kernels: %2
batched products: 1 by kernels
""",
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("8, ", "7, ", "of fewer than 8 rows or columns"),
        ("f32", "bf16", "of bf16, for which kernels were not timed"),
        ("[3, 5, 9]", "[1, 5, 9]", "of other operands"),
        ("5]@", "0]@", "without terms or results"),
    ],
)
def test_other_batched_products_are_the_framework_s(old: str, new: str, reason: str) -> None:
    text = BATCHED.replace(old, new)
    if new.startswith("0"):
        text = text.replace("[3, 5, 9]", "[3, 0, 9]")
    found = choose_batched_products(parse_graph(text), target_facts(AMD))
    assert not found.results
    assert found.notes == (f"batched products: 1 by the framework: {reason}",)


@pytest.mark.parametrize(("old", "new"), [("[3, 8", "[3, s0"), ("[3, ", "[s0, ")])
def test_batches_and_rows_may_vary_in_number(old: str, new: str) -> None:
    text = BATCHED.replace(old, new)
    text = text.replace("prims 1\n", "prims 1\nsize s0 from 2\n", 1)
    found = choose_batched_products(parse_graph(text), target_facts(AMD))
    assert found.notes == ("batched products: 1 by kernels",)


def test_targets_that_were_not_measured_leave_batched_products_to_the_framework() -> None:
    for target in ("cpu:x86-64-v4", "cuda:sm_90a"):
        assert not choose_batched_products(parse_graph(BATCHED), target_facts(target)).results
