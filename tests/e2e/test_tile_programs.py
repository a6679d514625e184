"""Tile programs of TileLang through a whole farm."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import kernelfarm
from kernelfarm.errors import TileProgramError
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.tile_programs import program_text
from tests.support.torch_children import run_python

_KERNELFARM = str(Path(sys.executable).with_name("kernelfarm"))
_TARGETS = ("cuda:sm_90a", "rocm:gfx942")


def test_a_product_uses_the_matrix_instructions_of_each_vendor(vendor_farm: Farm) -> None:
    compiled = kernelfarm.compile_tilelang(
        program_text("matmul_large"), _TARGETS, endpoint=vendor_farm.endpoint, timeout_s=TIMEOUT_S
    )

    assert "wgmma.mma_async" in compiled.texts("cuda:sm_90a")["ptx"]
    assert "v_mfma" in compiled.texts("rocm:gfx942")["amdgcn"]
    assert compiled.grid() == (32, 32, 1)
    for target, warps in zip(_TARGETS, (4, 2), strict=True):
        assert compiled.binary(target).startswith(b"\x7fELF")
        assert compiled.variants(target)[0].launch.num_warps == warps


def test_equal_programs_are_compiled_once(vendor_farm: Farm) -> None:
    text = program_text("softmax")
    first, second = (
        kernelfarm.compile_tilelang(
            each, ["cuda:sm_90a"], endpoint=vendor_farm.endpoint, timeout_s=TIMEOUT_S
        )
        for each in (text, f"# another comment\n{text}")
    )

    assert [p.codegen_jobs for p in first.programs.values()] == [1]
    assert [p.codegen_jobs for p in second.programs.values()] == [0]


def test_a_program_compiles_for_ascend(vendor_farm: Farm) -> None:
    compiled = kernelfarm.compile_tilelang(
        program_text("matmul"),
        ["ascend:910b", "cuda:sm_90a"],
        endpoint=vendor_farm.endpoint,
        timeout_s=TIMEOUT_S,
    )

    assert "linalg.matmul" in compiled.texts("ascend:910b")["linalg"]
    assert compiled.variants("ascend:910b")[0].notes == ()


def test_a_program_needs_a_target() -> None:
    with pytest.raises(TileProgramError, match="cuda:"):
        kernelfarm.compile_tilelang(
            program_text("softmax"), [], endpoint="127.0.0.1:1", timeout_s=1.0
        )


def test_the_command_writes_binaries_or_names_the_line(vendor_farm: Farm, tmp_path: Path) -> None:
    path, wrong = tmp_path / "add.txt", tmp_path / "wrong.txt"
    path.write_text(program_text("matrix_add"))
    wrong.write_text(program_text("matrix_add").replace("T.parallel(16)", "T.magic(16)"))
    where = ("--target", "cuda:sm_90a", "--endpoint", vendor_farm.endpoint, "--out", tmp_path / "b")

    def run(file: Path) -> tuple[int, str]:
        words = (_KERNELFARM, "compile-tilelang", *map(str, (file, *where)))
        done = run_python(words, {**os.environ, "COLUMNS": "120"}, timeout_s=2 * TIMEOUT_S)
        return done.returncode, done.stderr

    status, problems = run(path)
    assert status == 0, problems
    (program,) = json.loads((tmp_path / "b" / "manifest.json").read_text())["programs"]
    assert program["target"] == "cuda:sm_90a"

    status, problems = run(wrong)
    assert status == 1
    assert "line 18: a loop over T.magic is not accepted" in problems
