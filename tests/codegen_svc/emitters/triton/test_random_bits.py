"""Every target produces exactly the same random bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from codegen_svc.backends.ascend.backend import BACKEND as ASCEND
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.ir.interpret.random_bits import philox
from kernelfarm.targets import target_facts
from tests.support.compiled_kernels import run as run_on_cpu
from tests.support.linalg_cpu import TOOLS, run_linalg
from tests.support.loop_kernels import emitter_shapes
from tests.support.third_party import need
from tests.support.triton_cases import Array, interpreter_case
from tests.support.triton_interpreter import run_interpreted

ROWS, WIDTH = 6, 37
SEEDS = [0, 1, -1, 0x0123456789ABCDEF, -(1 << 63)]
TILINGS = [None, Tiling(64, 16, 0, False, 32), Tiling(128, 128, 0, False, 64)]


def buffers(seed: int) -> dict[str, Array]:
    count = ROWS * WIDTH
    return {
        "in0": np.array([seed], np.int64),
        "out0": np.zeros(count, np.int64),
        "out1": np.zeros(count, np.float32),
    }


def wanted(seed: int) -> tuple[Array, Array]:
    bits = philox(np.array(seed, np.int64), np.arange(ROWS * WIDTH))
    fractions = (bits.astype(np.uint64) & np.uint64(0xFFFFFFFF)) >> np.uint64(8)
    return bits, (fractions.astype(np.float64) * 2.0**-24).astype(np.float32)


def assert_wanted(seed: int, bits: Array, fractions: Array) -> None:
    model = wanted(seed)
    np.testing.assert_array_equal(bits, model[0])
    np.testing.assert_array_equal(fractions, model[1])


def test_triton_source_gives_the_interpreter_s_bits_in_every_tiling() -> None:
    kernel = emitter_shapes.random_floats(ROWS, WIDTH)
    # Every seed in one tiling and one seed in every tiling: the two are independent.
    pairs = [(seed, TILINGS[0]) for seed in SEEDS] + [(SEEDS[3], other) for other in TILINGS[1:]]
    cases = [interpreter_case(kernel, buffers(seed), {}, tiling) for seed, tiling in pairs]
    for (seed, _), result in zip(pairs, run_interpreted(cases), strict=True):
        assert not isinstance(result, str), result
        assert_wanted(seed, result[1], result[2])


@pytest.mark.parametrize("seed", SEEDS)
def test_cpu_code_gives_the_interpreter_s_bits(seed: int) -> None:
    arrays = buffers(seed)
    assert run_on_cpu(emitter_shapes.random_floats(ROWS, WIDTH), arrays) == 0
    assert_wanted(seed, arrays["out0"], arrays["out1"])


@pytest.mark.third_party
def test_ascend_linalg_gives_the_interpreter_s_bits(tmp_path: Path) -> None:
    need(*TOOLS)
    (built,) = ASCEND.build(emitter_shapes.random_floats(ROWS, WIDTH), target_facts("ascend:910b"))
    arrays = buffers(SEEDS[3])
    run_linalg(built, list(arrays.values()), {}, tmp_path)
    assert_wanted(SEEDS[3], arrays["out0"], arrays["out1"])
