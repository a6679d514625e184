"""Which lines of a kernel's stages are linked, for each form in which a stage records origins."""

from __future__ import annotations

import pytest

from kernelfarm.ir.text import parse_kernel
from kernelfarm.pages.line_marks import (
    MarkKind,
    mark_kernel,
    mark_stage,
    nodes_of_statements,
    statements_of_source,
)
from tests.support.explained_programs import kernel_text, triton_source, ttir

NAME = "fused_add_exp_00000000"
KERNEL = parse_kernel(kernel_text(NAME, 0))

DEBUG_IR = f"""define void @{NAME}() !dbg !6 {{
  %1 = load float, ptr %0, !dbg !13
  %2 = fadd float %1, %1, !dbg !14
  %3 = call float @f(), !dbg !15
  ret void
}}
!13 = !DILocation(line: 9, column: 13, scope: !6)
!14 = !DILocation(line: 287, column: 12, scope: !23, inlinedAt: !25)
!25 = distinct !DILocation(line: 314, column: 12, scope: !23, inlinedAt: !26)
!26 = !DILocation(line: 11, column: 13, scope: !6)
"""
ASSEMBLY = f"""	.file	1 "{NAME}.py"
	mov.u32 %r0, 0;
	.loc	1 9 13                          // {NAME}.py:9:13
	ld.global.b32 %r1, [%rd1];
	.loc	2 287 12, function_name $L__info_string0, inlined_at 1 11 13 // standard.py:287:12
	add.f32 %r2, %r1, %r1;
	.loc	2 314 12, function_name $L__info_string0, inlined_at 2 5 1 // standard.py:314:12
	add.f32 %r3, %r1, %r1;
	.loc	1 0 0 is_stmt 0                 // :0:0
	ret;
$L__func_end0:
"""
NAMED_IR = """define i32 @x() {
  %in0_v0 = load float, ptr %p
  %add2 = fadd float %in0_v0, 0x3FE0000000000000
  %add2.1 = fadd float %add2, %other2
  ret i32 0
}
"""


def test_a_statement_is_linked_to_the_nodes_that_use_its_operator() -> None:
    assert nodes_of_statements(KERNEL) == ((), (), (0,), (1,), ())
    marked = mark_kernel(KERNEL)
    assert marked.lines[8] == "  %2: f32 = add %0, %1"
    assert marked.marks == ((),) * 6 + ((0,), (1,), (2,), (3,), (4,))


def test_a_line_of_triton_source_is_linked_by_the_names_of_its_values() -> None:
    found = statements_of_source(triton_source(NAME, 0), KERNEL)
    assert found == {9: (0,), 10: (1,), 11: (2,), 12: (3,), 13: (4,)}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("ttir", ttir(NAME), {4: (9,), 5: (11,), 6: (8,)}),
        ("llir", DEBUG_IR, {2: (9,), 3: (11,)}),
        ("ptx", ASSEMBLY, {3: (9,), 4: (9,), 5: (11,), 6: (11,), 7: (11,), 8: (11,)}),
    ],
)
def test_a_later_stage_is_linked_to_lines_of_the_source(
    name: str, text: str, expected: dict[int, tuple[int, ...]]
) -> None:
    marked = mark_stage(name, text, KERNEL)
    assert marked.kind is MarkKind.SOURCE_LINE
    assert {n: m for n, m in enumerate(marked.marks, start=1) if m} == expected


def test_llvm_ir_of_the_cpu_is_linked_by_the_names_of_its_values() -> None:
    marked = mark_stage("llir", NAMED_IR, KERNEL)
    assert marked.kind is MarkKind.STATEMENT
    assert {n: m for n, m in enumerate(marked.marks, start=1) if m} == {2: (0,), 3: (2, 0), 4: (2,)}


def test_a_stage_without_origins_says_so() -> None:
    marked = mark_stage("asm", "\tvaddps %ymm0, %ymm1\n", KERNEL)
    assert marked.kind is MarkKind.NONE
    assert "no origin" in marked.how


def test_locations_that_name_each_other_end() -> None:
    text = '#loc1 = loc("a"(#loc2))\n#loc2 = loc("b"(#loc1))\n%0 = x loc(#loc1)\n'
    assert mark_stage("ttir", text, KERNEL).kind is MarkKind.NONE
    text = "  %1 = x, !dbg !1\n!1 = !DILocation(line: 3, scope: !6, inlinedAt: !1)\n"
    assert mark_stage("llir", text, KERNEL).kind is MarkKind.NONE
