"""Bytes beside each other that are loaded as words, and the steps along rows of bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import Tiling, gpu_tiling
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.targets import target_facts
from tests.support.triton_cases import expected, interpreter_case
from tests.support.triton_interpreter import run_interpreted

TARGET = target_facts("cuda:sm_90a")


def nibbles(rows: int, words: int, dtype: str = "u8", count: int = 4) -> Kernel:
    """Sums of x times the low halves of `count` bytes of each word."""
    body = []
    total = None
    for byte in range(count):
        first = 7 * byte
        body.append(f"""\
  %{first}: f32 = load in0[r0 + {words * byte}]
  %{first + 1}: {dtype} = load in1[{4 * words}*d0 + 4*r0 + {byte}]
  %{first + 2}: {dtype} = 15
  %{first + 3}: {dtype} = bit_and %{first + 1}, %{first + 2}
  %{first + 4}: f32 = convert %{first + 3}
  %{first + 5}: f32 = mul %{first}, %{first + 4}
  %{first + 6}: f32 = add %{first + 5}, %{first + 5 if total is None else total}
""")
        total = first + 6
    return parse_kernel(f"""\
kernel nibbles
param in in0: f32[{4 * words}]
param in in1: {dtype}[{4 * words * rows}]
param out out0: f32[{rows}]
for d0 in {rows}
reduce r0 in {words}
{"".join(body)}  %{7 * count}: f32 = sum %{total}
  store out0[d0] = %{7 * count}
""")


def text_of(kernel: Kernel, tiling: Tiling) -> str:
    return emit_triton(kernel, tiling, scalar_rules(TARGET, kernel)).text


def tiling(xblock: int, rblock: int, *, is_persistent: bool = False) -> Tiling:
    return Tiling(xblock, xblock, rblock, is_persistent, 32, 1, 1, reads_words=True)


@pytest.mark.parametrize("dtype", ["u8", "i8"])
@pytest.mark.parametrize("form", [tiling(1, 32), tiling(4, 16), tiling(2, 64, is_persistent=True)])
def test_words_give_the_bytes_that_loads_of_bytes_give(form: Tiling, dtype: str) -> None:
    """All values of a byte, with rows and points past the end of blocks."""
    kernel = nibbles(5, 50, dtype)
    rng = np.random.default_rng(0)
    packed = np.concatenate([np.arange(256), rng.integers(0, 256, 1000 - 256)]).astype(np.uint8)
    given = {
        "in0": rng.standard_normal(200).astype(np.float32),
        "in1": packed if dtype == "u8" else packed.view(np.int8),
        "out0": np.zeros(5, np.float32),
    }
    assert "_word = tl.load(" in text_of(kernel, form)
    (result,) = run_interpreted([interpreter_case(kernel, given, {}, form)])
    assert not isinstance(result, str), result
    np.testing.assert_allclose(result[-1], expected(kernel, given, {})["out0"], rtol=1e-5)


def test_a_word_is_loaded_once() -> None:
    assert text_of(nibbles(8, 64), tiling(1, 32)).count("_word = tl.load(") == 1


def test_words_that_are_read_in_part_stay_bytes() -> None:
    """The last byte of a buffer may be within a word that goes past its end."""
    assert "_word" not in text_of(nibbles(8, 64, count=3), tiling(1, 32))


def test_buffers_that_may_begin_anywhere_are_read_in_bytes() -> None:
    form = replace(tiling(1, 32), reads_words=False)
    assert "_word" not in text_of(nibbles(8, 64), form)


def test_rows_of_bytes_are_read_in_small_steps() -> None:
    """1,024 bytes at a time: 256 words."""
    found = gpu_tiling(nibbles(4096, 512), TARGET, 32)
    assert found is not None
    assert (found.xblock, found.rblock, found.num_warps) == (1, 256, 2)
    assert not found.is_persistent


def test_rows_without_a_vector_are_held() -> None:
    """The mean of an image's bytes is no product."""
    kernel = parse_kernel("""\
kernel mean
param in in0: u8[2097152]
param out out0: f32[4096]
for d0 in 4096
reduce r0 in 512
  %0: u8 = load in0[512*d0 + r0]
  %1: f32 = convert %0
  %2: f32 = sum %1
  store out0[d0] = %2
""")
    found = gpu_tiling(kernel, TARGET, 32)
    assert found is not None
    assert found.is_persistent
