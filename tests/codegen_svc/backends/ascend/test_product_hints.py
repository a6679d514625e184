"""Annotations of a product's panels, and hints for products."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from kernelfarm.ir.hints import KernelHint
from kernelfarm.ir.loop_ir import Kernel
from tests.support.ascend_products import built_of, interpreted_case, tiling_of
from tests.support.linalg_cpu import linalg_of
from tests.support.product_kernels import linear, scaled, with_residuals
from tests.support.triton_cases import random_buffers
from tests.support.triton_interpreter import run_interpreted

pytestmark = pytest.mark.usefixtures("adapter")


def test_panels_are_annotated_with_their_buffers() -> None:
    text = linalg_of(built_of(linear(512, 512, 4096, "f16")))
    marks = re.findall(r"annotation\.mark (%\w+) {hivm\.multi_buffer = 2 : i32} : (\S+)", text)
    tile = tiling_of(built_of(linear(512, 512, 4096, "f16")))
    x, r, k = tile["xblock"], tile["rblock"], tile["kblock"]
    assert [kind for _, kind in marks] == [f"tensor<{x}x{k}xf16>", f"tensor<{r}x{k}xf16>"]
    # A residual is no panel.
    residual = linalg_of(built_of(with_residuals(4096, 512, 4096, "f16")))
    assert residual.count("hivm.multi_buffer") == len(marks)


@pytest.mark.parametrize(
    ("kernel", "hint", "note", "marks"),
    [
        (linear(512, 512, 4096), KernelHint("dot_pad_only_k"), "applied", 2),
        (
            scaled(64, "f16"),
            KernelHint("dot_pad_only_k"),
            "ignored: something else than the product uses its blocks",
            0,
        ),
        (linear(512, 512, 4096), KernelHint("multibuffer", 1), "applied", 0),
        (linear(512, 512, 4096), KernelHint("multibuffer", 2), "applied", 0),
        (
            linear(64, 64, 64),
            KernelHint("multibuffer"),
            "ignored: a core computes its tile in one step, so it fetches no next panel",
            0,
        ),
    ],
)
def test_hints_of_products(kernel: Kernel, hint: KernelHint, note: str, marks: int) -> None:
    built = built_of(replace(kernel, hints=(hint,)))
    assert built.notes[-1] == f"hint {hint}: {note}"
    text = linalg_of(built)
    assert text.count("{dot_pad_only_k}") == marks
    assert (hint.value == 1) <= ("hivm.multi_buffer" not in text)


def test_rows_and_columns_past_the_end_need_no_zeros() -> None:
    """What `dot_pad_only_k` relies on: with NaN there, in every tile, results are the same."""
    kernel = linear(50, 70, 600, "f16")
    plain_case = interpreted_case(kernel, random_buffers(kernel, {}))
    padded = re.sub(
        r"(?m)^( +)(in\d_\d) = (tl\.load\(.*(?<=[ =])(k\w*mask).*), other=0\.0\)$",
        r"\1\2 = tl.where(\4, \3, other=float('nan')), 0.0)",
        plain_case.source.text,
    )
    assert padded.count("float('nan')") == 2
    cases = [plain_case, replace(plain_case, source=replace(plain_case.source, text=padded))]
    results = run_interpreted(cases)
    first, second = (result[-1] for result in results if not isinstance(result, str))
    np.testing.assert_array_equal(first, second)
