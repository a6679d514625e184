"""The template of attention in pages as code generators build it: blocks are loaded ahead."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.built_templates import HOPPER, built, stage
from tests.support.paged_attention import PagedForm
from tests.support.template_kernels import templates
from tests.support.traced_graphs import traced_one

LLAMA = PagedForm(groups=8, heads=4, width=128, pages=20)


def kernel_of(form: PagedForm, *, varies: bool = False) -> UserKernel:
    operands, facts = form.operands(), target_facts(HOPPER)
    if varies:
        for operand in operands:
            torch._dynamo.mark_dynamic(operand, 0)
        torch._dynamo.mark_dynamic(operands[3], 1)
    graph = traced_one(form.attend, *operands).graph
    lowered = decompose_to_prims(graph, max_sorted_elems=facts.max_sorted_elems)
    (kernel,) = templates(optimize(lowered.graph, facts).program)
    return kernel


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("target", [HOPPER, "cuda:sm_80"])
def test_two_blocks_of_keys_and_of_values_are_copied_ahead(
    target: str, size: int, varies: bool
) -> None:
    form = replace(LLAMA, size=size, pages=320 // size)
    aligned, _ = built(kernel_of(form, varies=varies), target)
    assert stage(aligned, "ttgir").count("local_alloc : () -> !ttg.memdesc<2x64x128xbf16") == 2
    assert not aligned.launch.spills


def test_a_page_of_whole_blocks_needs_one_number_for_a_block() -> None:
    aligned, _ = built(kernel_of(replace(LLAMA, size=128, pages=3)))
    assert re.search(r"local_alloc : \(\) -> !ttg.memdesc<2x1xi32", stage(aligned, "ttgir"))


@pytest.mark.parametrize("size", [16, 64])
def test_pages_compile_for_amd(size: int) -> None:
    kernel = kernel_of(replace(LLAMA, size=size, pages=320 // size))
    # These chips have less shared memory.
    for variant in built(
        replace(kernel, options=(("num_stages", 2), ("num_warps", 4))), "rocm:gfx942"
    ):
        assert variant.launch.shared_bytes <= 65536
