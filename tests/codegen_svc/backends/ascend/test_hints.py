"""Hints on Ascend: annotations that CANN's compiler reads, checked against blocks and chip."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codegen_svc.backends.ascend.backend import BACKEND
from codegen_svc.backends.ascend.bishengir import TOOL
from codegen_svc.backends.ascend.hinted_tiling import hinted_local_tiling
from kernelfarm.digest import kernel_key
from kernelfarm.dtypes import DType
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.hints import read_hints
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import LocalBufferFacts, TargetFacts, target_facts
from tests.support.hinted_kernels import with_comments
from tests.support.linalg_cpu import TOOLS, run_user_linalg
from tests.support.loop_kernels import emitter_shapes
from tests.support.third_party import need
from tests.support.tutorial_kernels import TUTORIALS

pytestmark = pytest.mark.usefixtures("adapter")

TARGET = target_facts("ascend:910b")


def _hinted(name: str, **comments: str) -> UserKernel:
    """A tutorial's kernel; comments are by the name that their statement assigns, or `loop`."""
    starts = {"loop": "for step in"}
    found = {starts.get(key, f"{key} = tl.load("): text for key, text in comments.items()}
    return with_comments(TUTORIALS[name].kernel(), found)


def _built(kernel: UserKernel, target: TargetFacts = TARGET) -> BuiltKernel:
    (built,) = BACKEND.build_user_kernel(kernel, target)
    return built


def _text(built: BuiltKernel, stage: str) -> str:
    return next(s.content.decode() for s in built.stages if s.name == stage)


def _marks(built: BuiltKernel) -> list[str]:
    lines = _text(built, "linalg").splitlines()
    return [line.strip() for line in lines if "annotation.mark" in line]


def _outcomes(built: BuiltKernel) -> list[str]:
    return [note.partition(": ")[2] for note in built.notes]


def test_hints_of_loads_are_annotations_of_their_blocks() -> None:
    kernel = _hinted("persistent matmul", a="dot_pad_only_k", b="dot_pad_only_k, multibuffer=2")
    built = _built(kernel)

    assert [mark.partition(" {")[2] for mark in _marks(built)] == [
        "dot_pad_only_k} : tensor<64x32xf16>",
        "dot_pad_only_k} : tensor<32x64xf16>",
        "hivm.multi_buffer = 2 : i32} : tensor<32x64xf16>",
    ]
    assert _outcomes(built) == ["applied"] * 3
    assert "kernelfarm.mark" not in _text(built, "linalg")


def test_hints_in_helpers_and_of_transposed_operands_fit() -> None:
    attention = _built(_hinted("attention", k="dot_pad_only_k, multibuffer"))
    plain = TUTORIALS["persistent matmul"].kernel()
    square = tuple(
        replace(param, value=64) if param.name in ("BK", "BN") else param for param in plain.params
    )
    source = plain.source.replace("tl.dot(a, b, total)", "tl.dot(a, tl.trans(b), total)")
    turned = replace(plain, params=square, source=source)
    product = _built(with_comments(turned, {"b = tl.load(": "dot_pad_only_k"}))

    assert _outcomes(attention) == ["applied"] * 2
    assert _outcomes(product) == ["applied"]
    assert "linalg.transpose" in _text(product, "linalg")


def test_a_hint_of_a_loop_is_a_scope_for_all_its_blocks() -> None:
    built = _built(_hinted("persistent matmul", loop="multibuffer"))

    assert _text(built, "scopes").count("multibuffer = 2 : i32") == 1
    assert [mark.partition(" {")[2] for mark in _marks(built)] == [
        "hivm.multi_buffer = 2 : i32} : tensor<64x32xf16>",
        "hivm.multi_buffer = 2 : i32} : tensor<32x64xf16>",
    ]
    assert _outcomes(built) == ["applied"]


def test_a_hint_is_a_part_of_the_key_and_changes_annotations_alone() -> None:
    plain = TUTORIALS["persistent matmul"].kernel()
    hinted = _hinted("persistent matmul", a="dot_pad_only_k", loop="multibuffer")
    without = [
        line
        for line in _text(_built(hinted), "linalg").splitlines()
        if "annotation.mark" not in line
    ]

    assert kernel_key(hinted, TARGET.name) != kernel_key(plain, TARGET.name)
    assert without == _text(_built(plain), "linalg").splitlines()


@pytest.mark.third_party
def test_a_kernel_with_hints_computes_the_same(tmp_path: Path) -> None:
    need(*TOOLS)
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((80, 70), (70, 72)))
    results = []
    for number, comments in enumerate(({}, {"a": "dot_pad_only_k", "loop": "multibuffer"})):
        kernel, c = _hinted("persistent matmul", **comments), np.zeros((80, 72), np.float16)
        folder = tmp_path / str(number)
        folder.mkdir()
        run_user_linalg(_built(kernel), kernel, (a, b, c, 80, 72, 70), (132, 1, 1), folder)
        results.append(c)
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(
        results[0], a.astype(np.float64) @ b.astype(np.float64), rtol=2e-3, atol=2e-2
    )


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (_hinted("add", x="dot_pad_only_k"), "something else than matrix products uses the block"),
        (_hinted("add", x="multibuffer=2"), "no loop fetches a next block"),
        (_hinted("softmax", values="multibuffer=3"), "expected a number from 2 to 2"),
        (_hinted("softmax", values="multibuffer=1"), "expected a number from 2 to 2"),
        (_hinted("softmax", values="dot_pad_only_k=2"), "expected no number"),
        (_hinted("softmax", values="async=3"), "it does not exist for this vendor"),
        (_hinted("persistent matmul", loop="dot_pad_only_k"), "tl.load, not at a loop"),
        (_hinted("grouped matmul", k="multibuffer"), "no load of a block is left"),
        (
            with_comments(TUTORIALS["grouped matmul"].kernel(), {"while tile": "multibuffer"}),
            "expected it at a statement with tl.load",
        ),
        (
            with_comments(TUTORIALS["add"].kernel(), {"tl.store(": "multibuffer"}),
            "expected it at a statement with tl.load",
        ),
    ],
)
def test_a_hint_that_does_not_fit_is_ignored_with_the_reason(
    kernel: UserKernel, problem: str
) -> None:
    built = _built(kernel)
    (note,) = (note for note in built.notes if note.startswith("hint "))
    assert ": ignored: " in note
    assert problem in note
    marks = [mark for mark in _marks(built) if "multi_buffer" in mark or "dot_pad" in mark]
    assert marks == []


def test_elements_that_are_fetched_one_by_one_have_no_second_buffer() -> None:
    plain = TUTORIALS["softmax"].kernel()
    scattered = replace(plain, source=plain.source.replace("* in_stride + at", "* 5 + at * at"))
    kernel = with_comments(scattered, {"values = tl.load(": "multibuffer"})
    assert _outcomes(_built(kernel))[-1] == "ignored: its elements are not copied as a block"


def test_buffers_that_the_chip_does_not_have_are_not_asked_for() -> None:
    # Two blocks of 1,024 floats, with a second buffer 12 KiB.
    chip = replace(TARGET.section(LocalBufferFacts), size_bytes=4096)
    built = _built(_hinted("softmax", values="multibuffer"), replace(TARGET, local_buffer=chip))
    assert _outcomes(built)[-1] == (
        "ignored: the blocks of a loop need 8192 bytes of a vector core's buffer, which has 4096"
    )
    assert _marks(built) == []


# As CANN's compiler does if buffers overflow: it refuses every text with second buffers.
_COMPILER = """#!/bin/sh
[ "$1" = --help ] && exit 0
grep -q multi_buffer "$1" && { echo 'error: ub overflow' >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
printf '\\177ELF' > "$2_reloc.o"
"""


def test_a_kernel_that_does_not_compile_with_its_hints_is_compiled_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / TOOL
    tool.write_text(_COMPILER)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    built = _built(_hinted("softmax", values="multibuffer"))
    assert not built.is_stub
    assert built.notes[-1].startswith("the hints are ignored: with them, bishengir-compile refuses")
    assert "ub overflow" in built.notes[-1]
    assert _marks(built) == []


def _loop_kernel(name: str, hints: str) -> Kernel:
    kernels = {
        **emitter_shapes.ALL,
        "many rows": emitter_shapes.layer_norm_silu(DType.F16, 48 * 1000, 1024),
    }
    return replace(kernels[name], hints=read_hints(hints) if hints else ())


def _buffers(built: BuiltKernel) -> tuple[int, str]:
    """The copies that scopes ask for, and the form of the tiling."""
    form = dict(built.launch.extras)["tiling"].partition('"form": "')[2].partition('"')[0]
    return _text(built, "linalg").count("hivm.multi_buffer = 2"), form


@pytest.mark.parametrize("name", ["many rows", "wide_softmax", "dynamic_add"])
def test_a_fused_kernel_without_second_buffers_has_no_scope(name: str) -> None:
    plain, single, double = (
        BACKEND.build(_loop_kernel(name, hints), TARGET)[-1]
        for hints in ("", "multibuffer=1", "multibuffer=2")
    )
    assert _buffers(plain)[0] == _buffers(double)[0] > 0
    assert _buffers(single)[0] == 0
    assert single.notes[-1] == "hint multibuffer=1: applied"
    assert double.notes[-1] == "hint multibuffer=2: applied"


def test_a_fused_kernel_reads_its_rows_in_pieces_for_a_second_buffer() -> None:
    # A row of 32 KiB fits this chip with what is computed from it, but not twice.
    chip = replace(TARGET.section(LocalBufferFacts), size_bytes=80 * 1024)
    small = replace(TARGET, local_buffer=chip)
    kernel = emitter_shapes.softmax(480, 8192, DType.F32)
    plain = BACKEND.build(kernel, small)[-1]
    double = BACKEND.build(replace(kernel, hints=read_hints("multibuffer")), small)[-1]
    assert _buffers(plain) == (0, "persistent")
    assert _buffers(double) == (3, "looped")
    assert double.notes == ("hint multibuffer: applied",)


def test_buffers_that_fit_at_no_tiling_are_ignored() -> None:
    chip = replace(TARGET.section(LocalBufferFacts), size_bytes=288)
    kernel = replace(emitter_shapes.softmax(480, 8192), hints=read_hints("multibuffer"))
    tiling, notes = hinted_local_tiling(kernel, replace(TARGET, local_buffer=chip), 32)
    assert notes == (
        "hint multibuffer: ignored: 2 buffers of each block do not fit the chip at any tiling",
    )
    assert tiling is not None
    assert tiling.load_buffers == 1


def test_a_fused_kernel_of_one_step_ignores_the_hint() -> None:
    built = BACKEND.build(_loop_kernel("softmax", "multibuffer"), TARGET)[-1]
    assert built.notes == (
        "hint multibuffer: ignored: a core computes its rows in one step, so it fetches no next"
        " block",
    )
