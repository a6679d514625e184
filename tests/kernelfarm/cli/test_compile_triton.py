"""`kernelfarm compile-triton` as a user runs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.farm import TIMEOUT_S, Farm
from tests.support.torch_children import run_python

_KERNELFARM = str(Path(sys.executable).with_name("kernelfarm"))
_KERNEL = """
import triton
import triton.language as tl

@triton.jit
def twice(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)

@triton.autotune([triton.Config({"BLOCK": 2**n}, num_warps=2) for n in (7, 8, 21)], key=["n"])
@triton.jit
def tuned(x_ptr, BLOCK: tl.constexpr, n, FACTOR: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, FACTOR * tl.load(x_ptr + at, mask=at < n), mask=at < n)
"""


@pytest.fixture
def kernel_file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(_KERNEL)
    return path


def _run(*arguments: object) -> tuple[int, str, str]:
    words = (_KERNELFARM, "compile-triton", *map(str, arguments))
    environment = {**os.environ, "COLUMNS": "120"}
    done = run_python(words, environment, timeout_s=2 * TIMEOUT_S)
    return done.returncode, done.stdout, done.stderr


def test_a_kernel_of_a_file_compiles_for_two_vendors_and_is_written(
    vendor_farm: Farm, kernel_file: Path, tmp_path: Path
) -> None:
    targets = ("--target", "cuda:sm_80", "--target", "rocm:gfx90a")
    signature = ("--signature", "*fp32, i32, 128", "--num-warps", 2)
    where = ("--out", tmp_path / "build", "--endpoint", vendor_farm.endpoint)
    status, shown, problems = _run(f"{kernel_file}:twice", *signature, *targets, *where)

    assert status == 0, problems
    assert "the address of buffer 0 is a multiple of 16" in shown.replace("\n", " ")
    programs = json.loads((tmp_path / "build" / "manifest.json").read_text())["programs"]
    assert [program["target"] for program in programs] == ["cuda:sm_80", "rocm:gfx90a"]
    for program, binary in zip(programs, ("cubin", "hsaco"), strict=True):
        (kernel,) = program["kernels"]
        for variant in kernel["variants"]:
            content = (tmp_path / "build" / variant["stages"][binary]).read_bytes()
            assert content.startswith(b"\x7fELF")


def test_all_configurations_that_compile_are_written_and_constants_may_have_names(
    vendor_farm: Farm, kernel_file: Path, tmp_path: Path
) -> None:
    signature = ("--signature", "*fp32, n=i32, FACTOR=3")
    where = ("--out", tmp_path / "build", "--endpoint", vendor_farm.endpoint)
    status, shown, problems = _run(
        f"{kernel_file}:tuned", *signature, "--target", "cuda:sm_80", *where
    )

    assert status == 0, problems
    assert "1 configurations do not fit" in shown.replace("\n", " ")
    (program,) = json.loads((tmp_path / "build" / "manifest.json").read_text())["programs"]
    texts = [
        (tmp_path / "build" / kernel["variants"][-1]["stages"]["user_kernel"]).read_text()
        for kernel in program["kernels"]
    ]
    assert [[n for n in (128, 256) if f"constant BLOCK = {n}\n" in text] for text in texts] == [
        [128],
        [256],
    ]
    assert all("constant FACTOR = 3\n" in text for text in texts)


@pytest.mark.parametrize(
    ("name", "signature", "message"),
    [
        ("other", "*fp32", "has no function 'other'"),
        ("twice", "*fp32, i32", "parameter BLOCK of twice has no type and no value"),
        ("triton", "*fp32", "is no function of triton.jit"),
    ],
)
def test_a_wrong_argument_is_one_line(
    kernel_file: Path, tmp_path: Path, name: str, signature: str, message: str
) -> None:
    target = ("--target", "cuda:sm_80", "--out", tmp_path, "--endpoint", "127.0.0.1:9")
    status, _, problems = _run(f"{kernel_file}:{name}", "--signature", signature, *target)

    assert status == 1
    assert message in problems.replace("\n", " ")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    options = ("--signature", "i32", "--target", "cuda:sm_80", "--out", tmp_path)
    status, _, problems = _run(tmp_path / "none.py:kernel", *options)

    assert status == 1
    assert "names no Python file" in problems.replace("\n", " ")
