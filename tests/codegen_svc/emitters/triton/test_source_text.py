"""The text of the emitted source, and what it never contains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import gpu_tiling, needs_64_bit_indices
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.loop_ir import Axis, Kernel, Load, Param
from kernelfarm.targets import target_facts
from tests.support.goldens import assert_golden_file
from tests.support.loop_kernels import emitter_shapes

GOLDENS = Path(__file__).parent / "goldens"
TARGET = target_facts("cuda:sm_90a")


def source_of(kernel: Kernel) -> str:
    tiling = gpu_tiling(kernel, TARGET, 64 if needs_64_bit_indices(kernel) else 32)
    assert tiling is not None
    return emit_triton(kernel, tiling, scalar_rules(TARGET, kernel)).text


@pytest.mark.golden
@pytest.mark.parametrize(
    "name",
    [
        "layer_norm_silu",
        "wide_softmax",
        "long_softmax",
        "rope_cat",
        "embedding",
    ],
)
def test_source_equals_its_golden(name: str) -> None:
    assert_golden_file(source_of(emitter_shapes.ALL[name]), GOLDENS / f"{name}.py.txt")


def test_every_fused_operator_has_a_comment_line() -> None:
    text = source_of(emitter_shapes.h_sum())
    for operator in ("ceil", "floor", "add", "sum"):
        assert f"    # {operator}\n" in text


def test_contiguous_accesses_use_the_flat_index_without_divisions() -> None:
    text = source_of(emitter_shapes.dynamic_add())
    assert "tl.load(in0_ptr + (xindex)" in text
    assert "//" not in text


def test_division_is_exact_unless_a_narrow_result_hides_its_error() -> None:
    assert "tl.div_rn" in source_of(emitter_shapes.softmax(4, 64, emitter_shapes.F32))
    assert "tl.div_rn" not in source_of(emitter_shapes.softmax(4, 64, emitter_shapes.F16))
    # The floor of a quotient can jump by one.
    assert "tl.div_rn" in source_of(emitter_shapes.floor_of_quotient())


def test_comments_cannot_leave_their_line() -> None:
    kernel = replace(emitter_shapes.h_sum(), comments=("sum\nimport os\r\u2028os.abort()",))
    text = source_of(kernel)
    assert "    # sum import os  os.abort()\n" in text


INJECTION = "x]; import os"


def _with_bad_name(kernel: Kernel) -> list[Kernel]:
    param = kernel.params[0]
    bad_load = Load("in0", symbol("__import__('os').abort()"))
    return [
        replace(kernel, name=INJECTION),
        replace(kernel, name="lambda"),
        replace(kernel, params=(Param("in0\n", param.dtype, param.size_elems, param.access),)),
        replace(kernel, outer=(Axis(INJECTION, as_expr(4)),)),
        replace(kernel, outer=(Axis("xindex", as_expr(4)),)),
        replace(kernel, body=(bad_load, *kernel.body[1:])),
    ]


@pytest.mark.parametrize("case", range(6))
def test_names_that_are_no_identifiers_never_reach_the_text(case: int) -> None:
    with pytest.raises(KernelRejectedError):
        source_of(_with_bad_name(emitter_shapes.h_sum())[case])


def test_unknown_operations_are_refused_by_name_and_target() -> None:
    kernel = emitter_shapes.scalar_op("system", (emitter_shapes.F32,), emitter_shapes.F32, 8)
    with pytest.raises(KernelRejectedError, match=r"operation system on f32.*cuda:sm_90a"):
        source_of(kernel)
