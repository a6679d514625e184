"""The templates of attention in pages as code generators build them, of few and of many queries."""

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
CHUNK = replace(LLAMA, queries=128, is_checked=True)


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


@pytest.mark.sweep
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


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("form", "box", "groups"),
    [
        (CHUNK, (1, 1, 16, 64), 2),
        (replace(CHUNK, size=64, pages=5, has_mask=False, is_causal=True), (1, 1, 64, 64), 2),
        (replace(CHUNK, size=256, pages=2, width=80, layout="heads first"), (1, 1, 128, 64), 2),
        (
            replace(CHUNK, size=48, queries=192, width=64, has_mask=False, table_dtype=torch.int64),
            (1, 1, 16, 64),
            3,
        ),
        (
            replace(CHUNK, size=32, width=32, dtype=torch.float16, joins_table=True),
            (1, 1, 32, 32),
            2,
        ),
    ],
    ids=str,
)
def test_many_queries_copy_chunks_of_pages_by_tensor_maps(
    form: PagedForm, box: tuple[int, ...], groups: int
) -> None:
    own, general = built(kernel_of(form))
    assert dict(own.launch.extras) == {"form": "template", "groups": str(groups)}
    _, keys, values, _ = own.launch.tensor_maps
    pages = 2 * form.sequences * form.pages
    for copied in (keys, values):
        assert copied.box == box
        assert copied.extents == (pages, form.groups, form.size, form.width)
    row = form.width * form.groups
    steps = (row * form.size, form.width, row)
    if form.layout == "heads first":
        steps = (row * form.size, form.width * form.size, form.width)
    assert keys.strides_bytes == tuple(step * 2 for step in steps)
    ptx = stage(own, "ptx")
    assert "cp.async.bulk.tensor.4d.shared" in ptx
    assert "wgmma.mma_async" in ptx
    if not form.has_mask:  # numbers of pages are loaded, and no keys or values
        assert 2 <= ptx.count("ld.global") <= 2 * 128 // box[2]
    assert not own.launch.spills
    assert not general.launch.tensor_maps


def test_a_cache_of_varying_size_gives_maps_of_varying_extent() -> None:
    own, _ = built(kernel_of(CHUNK, varies=True))
    keys = own.launch.tensor_maps[1]
    assert [str(extent) for extent in keys.extents][1:] == ["8", "16", "128"]
    bound = keys.at({name: 77 for name in str(keys.extents[0]).split()})
    assert bound.extents == (77, 8, 16, 128)
    assert bound.strides_bytes == (32768, 256, 2048)


@pytest.mark.sweep
@pytest.mark.parametrize("size", [16, 64, 8])
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_89", HOPPER])
def test_the_source_of_many_queries_multiplies_blocks_of_pages_on_tensor_cores(
    target: str, size: int
) -> None:
    form = replace(CHUNK, size=size, pages=320 // size, has_mask=False)
    source = replace(kernel_of(form), template="")
    aligned, _ = built(source, target)
    ptx = stage(aligned, "ptx")
    assert ("wgmma.mma_async" if target == HOPPER else "mma.sync.aligned") in ptx
    assert "cp.async.cg.shared.global" in ptx
    if size > 8:  # numbers of pages are loaded ahead of the keys
        assert f"memdesc<1x{1 if size == 64 else 64}xi32" in stage(aligned, "ttgir")
    assert not aligned.launch.spills


@pytest.mark.parametrize("size", [16, 64])
def test_pages_of_many_queries_compile_for_amd(size: int) -> None:
    kernel = kernel_of(replace(CHUNK, size=size, pages=320 // size))
    for variant in built(kernel, "rocm:gfx942"):
        assert "v_mfma" in stage(variant, "amdgcn")
        assert variant.launch.shared_bytes <= 65536
