"""Products by factors that are in panels in memory: their numbers at all edges, and their code."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from codegen_svc.emitters.llvm.tiles import tiled_product
from kernelfarm.client.freezing.order_weights import panels_of_matrix
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.panel_order import LANE_BYTES, tile_vectors
from tests.support.compiled_kernels import built as built_kernel
from tests.support.compiled_kernels import dots, run, run_targets, stage_text, unless_it_runs
from tests.support.product_kernels import mixed, stored

PAIRS = "cpu:x86-64-v4-bf16-amd"
VECTOR_BITS = {"cpu:aarch64": 128, "cpu:x86-64-v3": 256, "cpu:x86-64-v4": 512, PAIRS: 512}
EDGES = [
    # Rows of whole tiles and blocks and others; columns past the end; an odd term; slices.
    (2, 64, 2),
    (18, 96, 64),
    (17, 200, 255),
    (128, 130, 1601),
    (385, 50, 7),
]
TARGETS = [pytest.param(PAIRS, marks=unless_it_runs(PAIRS)), *run_targets()]


def width_of(columns: int, target: str) -> int:
    bits = VECTOR_BITS[target]
    return bits // (8 * LANE_BYTES) * tile_vectors(as_expr(columns), bits)


def product(rows: int, columns: int, summed: int, target: str, dtype: torch.dtype) -> None:
    """Checks a product: sums by panels in memory are those by panels that a kernel copies."""
    width, is_narrow = width_of(columns, target), dtype is torch.bfloat16
    name = "bf16" if is_narrow else "f32"
    draw = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(n, summed, generator=draw).to(dtype) for n in (rows, columns))
    panels = panels_of_matrix(weight, width, 1 + is_narrow, is_turned=True)
    found = []
    copied = mixed(rows, columns, summed, name, name, has_columns=False)
    for kernel, factor in ((stored(rows, columns, summed, width, name), panels), (copied, weight)):
        for threads in (1, 3):
            out = np.full(rows * columns, np.nan, np.float32)
            given = {"in0": flat(x), "in1": flat(factor), "out0": out}
            assert run(kernel, given, threads=threads, target=target) == 0
            found.append(out.reshape(rows, columns))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    exact = (x.double() @ weight.double().t()).numpy()
    # Sums of so many terms of about 1 in f32.
    np.testing.assert_allclose(found[0], exact, atol=1e-6 * summed, rtol=1e-5)


def flat(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype is not torch.bfloat16:
        return tensor.reshape(-1).numpy()
    return tensor.reshape(-1).view(torch.int16).numpy().view(ml_dtypes.bfloat16)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "columns", "summed"), EDGES)
def test_sums_of_f32_by_stored_panels_are_those_by_copied_ones(
    rows: int, columns: int, summed: int, target: str
) -> None:
    product(rows, columns, summed, target, torch.float32)


@pytest.mark.parametrize("target", TARGETS[:1])
@pytest.mark.parametrize(("rows", "columns", "summed"), EDGES[1:])
def test_sums_of_pairs_by_stored_panels_are_those_by_copied_ones(
    rows: int, columns: int, summed: int, target: str
) -> None:
    product(rows, columns, summed, target, torch.bfloat16)


@pytest.mark.parametrize(
    ("target", "dtype"),
    [("cpu:x86-64-v3", "f32"), ("cpu:x86-64-v4", "f32"), (PAIRS, "f32"), (PAIRS, "bf16")],
)
def test_stored_panels_are_not_copied_and_are_fetched_ahead(target: str, dtype: str) -> None:
    name = {"f32": "vfmadd231ps", "bf16": "vdpbf16ps"}[dtype]
    kernel = stored(60, 128, 64, width_of(128, target), dtype)
    asm = stage_text(built_kernel(kernel, target), "asm")
    loops = [part for part in asm.split("\n.L") if part.count(name) >= 12]
    assert [part.count("prefetch") for part in loops] == [4 if target.endswith("v3") else 2, 0]
    assert "vpermt2" not in asm
    assert "vunpck" not in asm
    assert "vpunpck" not in asm


@pytest.mark.parametrize(("columns", "width"), [(96, 48), (128, 64), (50, 64)])
def test_panels_of_another_width_or_without_pairs_are_not_in_tiles(
    columns: int, width: int
) -> None:
    own = width_of(columns, PAIRS)
    kernel = stored(32, columns, 64, width)
    found = tiled_product(kernel, 512, dots(PAIRS))
    assert (found is not None) is (own == width)
    assert tiled_product(kernel, 512) is None
