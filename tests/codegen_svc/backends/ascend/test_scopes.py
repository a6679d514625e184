"""Scopes in Linalg text: what they enclose, and what their hints become."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen_svc.backends.ascend.adapter import find_adapter
from codegen_svc.backends.ascend.backend import BACKEND
from codegen_svc.backends.ascend.linalg_text import loaded_blocks, loops_of
from codegen_svc.backends.ascend.scopes import add_scopes, lower_scopes, scope_loops
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.targets import target_facts
from tests.support.goldens import assert_golden, assert_golden_file
from tests.support.hinted_kernels import with_comments
from tests.support.linalg_cpu import TOOLS
from tests.support.loop_kernels import emitter_shapes
from tests.support.third_party import need, output_of
from tests.support.tutorial_kernels import TUTORIALS

GOLDENS = Path(__file__).parent / "goldens"
TARGET = target_facts("ascend:910b")

# An accumulator over blocks, in two loops, with a copy that only the outer one makes.
_NESTED = """module {
  func.func @k(%arg0: memref<?xf32>, %n: i32) {
    %0:2 = scf.for %i = %l to %n step %s iter_args(%a = %z) -> (tensor<8xi8>, i32)  : i32 {
      %alloc = memref.alloc() : memref<8xi8>
      memref.copy %from, %alloc : memref<8xi8, strided<[1]>> to memref<8xi8>
      %1 = bufferization.to_tensor %alloc restrict writable : memref<8xi8>
      %2 = scf.for %j = %l to %n step %s iter_args(%b = %1) -> (tensor<8xi8>)  : i32 {
        %alloc_0 = memref.alloc() : memref<4x8xf16>
        %part = memref.subview %alloc_0[0] [%m] [1] : memref<4x8xf16> to memref<?x8xf16>
        memref.copy %other, %part : memref<?x8xf16> to memref<?x8xf16>
        %3 = bufferization.to_tensor %alloc_0 restrict writable : memref<4x8xf16>
        scf.yield %b : tensor<8xi8>
      }
      scf.yield %2, %n : tensor<8xi8>, i32
    }
    return
  }
}
"""


def _built(name: str) -> BuiltKernel:
    if find_adapter() is None:
        pytest.skip("NOT RUN: triton-adapter-opt")
    if name in TUTORIALS:
        return BACKEND.build_user_kernel(
            with_comments(TUTORIALS[name].kernel(), {"for step in": "multibuffer"}), TARGET
        )[-1]
    return BACKEND.build(emitter_shapes.ALL[name], TARGET)[-1]


def _text(built: BuiltKernel, stage: str) -> str:
    return next(s.content.decode() for s in built.stages if s.name == stage)


# An elementwise kernel, a reduction that reads its row three times, and a product of matrices.
SCOPED = ("dynamic_add", "wide_softmax", "persistent matmul")


@pytest.mark.golden
@pytest.mark.parametrize("name", SCOPED)
def test_scopes_and_what_becomes_of_them_equal_their_goldens(name: str) -> None:
    built = _built(name)
    for stage in ("scopes", "linalg"):
        path = GOLDENS / f"{name.replace(' ', '_')}.{stage}.mlir.txt"
        assert_golden_file(_text(built, stage), path)


@pytest.mark.third_party
@pytest.mark.parametrize("name", SCOPED)
def test_mlir_reads_text_with_scopes(name: str) -> None:
    need(TOOLS[0])
    kept = [line for line in _text(_built(name), "scopes").splitlines() if "mark" not in line]
    # Parsing and verifying; types and uses of values across the regions are checked, too.
    read = output_of(TOOLS[0], "--allow-unregistered-dialect", text="\n".join(kept))
    assert '"scope.scope"' in read


@pytest.mark.parametrize("name", SCOPED)
def test_lowering_a_scope_adds_annotations_and_nothing_else(name: str) -> None:
    built = _built(name)
    scoped, lowered = _text(built, "scopes"), _text(built, "linalg")
    plain = [line for line in lowered.splitlines() if "hivm.multi_buffer" not in line]
    unscoped = [line for line in lower_scopes(scoped).splitlines() if "multi_buffer" not in line]
    assert '"scope.' not in lowered
    assert plain == unscoped
    again = scope_loops("\n".join((*plain, "")), 2)
    assert lower_scopes(again) == lowered
    blocks = loaded_blocks(lowered.splitlines())
    assert lowered.count("hivm.multi_buffer = 2") == len(blocks) > 0


def test_a_kernel_whose_cores_compute_one_step_has_no_scope() -> None:
    built = _built("layer_norm_silu")
    assert [stage.name for stage in built.stages].count("scopes") == 0
    assert "multi_buffer" not in _text(built, "linalg")


@pytest.mark.golden
def test_the_inner_scope_of_a_block_counts() -> None:
    outer, inner = loops_of(_NESTED.splitlines())
    scoped = add_scopes(_NESTED, {outer: 2, inner: 3})
    assert_golden(
        scoped,
        """\
module {
  func.func @k(%arg0: memref<?xf32>, %n: i32) {
    %0:2 = "scope.scope"() ({
      %scoped_0:2 = scf.for %i = %l to %n step %s iter_args(%a = %z) -> (tensor<8xi8>, i32)  : i32 {
        %alloc = memref.alloc() : memref<8xi8>
        memref.copy %from, %alloc : memref<8xi8, strided<[1]>> to memref<8xi8>
        %1 = bufferization.to_tensor %alloc restrict writable : memref<8xi8>
        %2 = "scope.scope"() ({
          %scoped_2 = scf.for %j = %l to %n step %s iter_args(%b = %1) -> (tensor<8xi8>)  : i32 {
            %alloc_0 = memref.alloc() : memref<4x8xf16>
            %part = memref.subview %alloc_0[0] [%m] [1] : memref<4x8xf16> to memref<?x8xf16>
            memref.copy %other, %part : memref<?x8xf16> to memref<?x8xf16>
            %3 = bufferization.to_tensor %alloc_0 restrict writable : memref<4x8xf16>
            scf.yield %b : tensor<8xi8>
          }
          "scope.return"(%scoped_2) : (tensor<8xi8>) -> ()
        }) {multibuffer = 3 : i32} : () -> (tensor<8xi8>)
        scf.yield %2, %n : tensor<8xi8>, i32
      }
      "scope.return"(%scoped_0#0, %scoped_0#1) : (tensor<8xi8>, i32) -> ()
    }) {multibuffer = 2 : i32} : () -> (tensor<8xi8>, i32)
    return
  }
}
""",
    )
    assert_golden(
        lower_scopes(scoped),
        """\
module {
  func.func @k(%arg0: memref<?xf32>, %n: i32) {
    %0:2 = scf.for %i = %l to %n step %s iter_args(%a = %z) -> (tensor<8xi8>, i32)  : i32 {
      %alloc = memref.alloc() : memref<8xi8>
      memref.copy %from, %alloc : memref<8xi8, strided<[1]>> to memref<8xi8>
      %1 = bufferization.to_tensor %alloc restrict writable : memref<8xi8>
      annotation.mark %1 {hivm.multi_buffer = 2 : i32} : tensor<8xi8>
      %2 = scf.for %j = %l to %n step %s iter_args(%b = %1) -> (tensor<8xi8>)  : i32 {
        %alloc_0 = memref.alloc() : memref<4x8xf16>
        %part = memref.subview %alloc_0[0] [%m] [1] : memref<4x8xf16> to memref<?x8xf16>
        memref.copy %other, %part : memref<?x8xf16> to memref<?x8xf16>
        %3 = bufferization.to_tensor %alloc_0 restrict writable : memref<4x8xf16>
        annotation.mark %3 {hivm.multi_buffer = 3 : i32} : tensor<4x8xf16>
        scf.yield %b : tensor<8xi8>
      }
      scf.yield %2, %n : tensor<8xi8>, i32
    }
    return
  }
}
""",
    )


def test_a_block_that_states_its_buffers_keeps_them() -> None:
    stated = "annotation.mark %1 {hivm.multi_buffer = 4 : i32} : tensor<8xi8>"
    lines = _NESTED.splitlines()
    lines.insert(6, f"      {stated}")
    outer = loops_of(lines)[0]
    lowered = lower_scopes(add_scopes("\n".join((*lines, "")), {outer: 2}))
    marks = [line.strip() for line in lowered.splitlines() if "multi_buffer" in line]
    assert marks == [
        stated,
        "annotation.mark %3 {hivm.multi_buffer = 2 : i32} : tensor<4x8xf16>",
    ]


def test_blocks_are_found_by_the_copies_that_fill_them() -> None:
    blocks = loaded_blocks(_NESTED.splitlines())
    assert [(block.name, block.type, block.size_bytes) for block in blocks] == [
        ("%1", "tensor<8xi8>", 8),
        ("%3", "tensor<4x8xf16>", 64),
    ]
    assert not any(block.is_operand for block in blocks)
